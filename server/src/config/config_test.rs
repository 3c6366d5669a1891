//! Tests of the configuration.

use super::*;

fn message(change: impl FnOnce(&mut Config)) -> String {
    let mut config = Config::default();
    change(&mut config);
    config.validate().unwrap_err().to_string()
}

#[test]
fn the_default_is_valid() {
    Config::default().validate().unwrap();
}

#[test]
fn an_error_names_the_field() {
    assert!(message(|config| config.routers.clear()).contains("routers"));
    assert!(message(|config| config.routers = vec!["http://x:1".into()]).contains("routers"));
    assert!(message(|config| config.advertise = Some("nowhere".into())).contains("advertise"));
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 7410));
    assert!(message(|config| config.listen = everywhere).contains("advertise"));
    assert!(message(|config| config.io_threads = 0).contains("io_threads"));
    assert!(message(|config| config.engine.wal_ring_bytes = 3).contains("wal_ring_bytes"));
    assert!(
        message(|config| config.engine.memory_budget_bytes = Some(0)).contains("memory_budget")
    );
    assert!(message(|config| config.limits.frames_in_flight = 0).contains("frames_in_flight"));
    assert!(
        message(|config| config.limits.connection_window_bytes = 1 << 16)
            .contains("connection_window_bytes")
    );
}

#[test]
fn an_unknown_field_is_an_error() {
    let config = serde_json::from_str::<Config>(r#"{"listen": "127.0.0.1:0"}"#).unwrap();
    assert_eq!(config.listen.port(), 0);
    for text in [r#"{"port": 1}"#, r#"{"engine": {"blom": true}}"#, r#"{"limits": {"x": 1}}"#] {
        assert!(serde_json::from_str::<Config>(text).is_err(), "{text}");
    }
}

#[test]
fn options_are_managed_and_follow_the_engine() {
    let options = EngineConfig::default().to_options();
    let expected = vmemkv_engine::Options {
        sharding: vmemkv_engine::Sharding::Managed,
        ..vmemkv_engine::Options::default()
    };
    assert_eq!(options, expected);
    let config = r#"{"engine": {"memory_budget_bytes": 1048576}}"#;
    let config = serde_json::from_str::<Config>(config).unwrap();
    assert_eq!(config.engine.to_options().memory_budget_bytes, Some(1 << 20));
}
