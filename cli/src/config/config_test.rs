//! Tests of the settings: precedence, names, kinds, and the environment of a pod.

use std::path::Path;

use super::*;

fn env(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn load(file: Option<&Path>, variables: &[(&str, &str)], flags: FlagSettings) -> Result<Loaded> {
    Loaded::from_sources(&Settings::default(), file, env(variables), flags)
}

fn with_file(name: &str, text: &str, variables: &[(&str, &str)]) -> Result<Loaded> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    load(Some(&path), variables, FlagSettings::default())
}

fn from_env(name: &str, value: &str) -> Result<Loaded> {
    load(None, &[(name, value)], FlagSettings::default())
}

#[test]
fn the_later_source_wins_setting_by_setting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("vmemkv.toml");
    let text = "[server]\ngrace_ms = 1\nio_threads = 2\ndata = \"from-file\"\n\
                labels = { zone = \"a\", rack = \"7\" }\n[log]\nlevel = \"debug\"\n";
    std::fs::write(&path, text).unwrap();
    let mut flags = FlagSettings::default();
    flags.set("--data", "server.data", "from-flag");
    flags.set("--label", "server.labels.zone", "c");
    let variables = [
        ("VMEMKV_SERVER__IO_THREADS", "3"),
        ("VMEMKV_SERVER__DATA", "from-variable"),
        ("VMEMKV_SERVER__LABELS__ZONE", "b"),
    ];
    let loaded = load(Some(&path), &variables, flags).unwrap();
    let server = &loaded.settings.server;
    assert_eq!(server.grace_ms, 1);
    assert_eq!(server.io_threads, 3);
    assert_eq!(server.data, Path::new("from-flag"));
    assert_eq!(server.labels["zone"], "c");
    assert_eq!(server.labels["rack"], "7");
    assert_eq!(server.listen.port(), 7410);
    assert_eq!(loaded.settings.log.level, "debug");
    assert_eq!(loaded.origin("server.listen"), "default");
    assert_eq!(loaded.origin("server.grace_ms"), path.display().to_string());
    assert_eq!(loaded.origin("server.io_threads"), "VMEMKV_SERVER__IO_THREADS");
    assert_eq!(loaded.origin("server.data"), "--data");
}

#[test]
fn toml_and_yaml_mean_the_same() {
    let toml = "[server]\nlisten = \"127.0.0.1:1\"\nrouters = [\"a:1\", \"b:2\"]\n\
                [server.engine]\nbloom = false\n[log]\nformat = \"json\"\n";
    let yaml = "server:\n  listen: 127.0.0.1:1\n  routers: ['a:1', 'b:2']\n  \
                engine:\n    bloom: false\nlog:\n  format: json\n";
    let toml = with_file("a.toml", toml, &[]).unwrap().settings;
    let yaml_settings = with_file("a.yaml", yaml, &[]).unwrap().settings;
    assert_eq!(toml, yaml_settings);
    assert_eq!(toml.server.routers, ["a:1", "b:2"]);
    assert!(!toml.server.engine.bloom);
    assert_eq!(toml.log.format, LogFormat::Json);
    for (name, text) in [("a.toml", ""), ("a.yml", ""), ("a.yml", "# nothing\n")] {
        assert_eq!(with_file(name, text, &[]).unwrap().settings, Settings::default());
    }
}

#[test]
fn an_unknown_name_in_a_file_is_an_error_with_a_suggestion() {
    for (text, wrong, meant) in [
        ("[server]\nlisen = \"x\"\n", "`server.lisen`", "`server.listen`"),
        ("[sever]\nlisten = \"x\"\n", "`sever`", "`server`"),
        ("[engine]\nbloom = true\n", "`engine`", "`server.engine`"),
        ("[server]\nbloom = true\n", "`server.bloom`", "`server.engine.bloom`"),
        ("[server.engine]\nblom = true\n", "`server.engine.blom`", "`server.engine.bloom`"),
        ("[server]\nhttp-listen = \"x\"\n", "`server.http-listen`", "`server.http_listen`"),
    ] {
        let failure = with_file("mine.toml", text, &[]).unwrap_err();
        let shown = failure.to_string();
        assert_eq!(failure.exit(), 2, "{shown}");
        assert!(shown.contains("mine.toml"), "{shown}");
        assert!(shown.contains(wrong), "{shown}");
        assert!(shown.contains(&format!("did you mean {meant}?")), "{shown}");
    }
    let far = with_file("mine.toml", "[server]\nquorum_policy = 1\n", &[]).unwrap_err();
    assert!(!far.to_string().contains("did you mean"), "{far}");
    assert!(far.to_string().contains("vmemkv config"), "{far}");
}

#[test]
fn an_unknown_name_in_the_environment_is_an_error_with_a_suggestion() {
    for (name, meant) in [
        ("VMEMKV_SERVER__LISEN", "VMEMKV_SERVER__LISTEN"),
        ("VMEMKV_SERVER_LISTEN", "VMEMKV_SERVER__LISTEN"),
        ("VMEMKV_SERVER__BLOOM__", "VMEMKV_SERVER__"),
        ("VMEMKV_ROUTER__LEASEMS", "VMEMKV_ROUTER__LEASE_MS"),
    ] {
        match from_env(name, "1") {
            Err(failure) => {
                let shown = failure.to_string();
                assert_eq!(failure.exit(), 2, "{shown}");
                assert!(shown.contains(name), "{shown}");
                if name != "VMEMKV_SERVER__BLOOM__" {
                    assert!(shown.contains(&format!("did you mean {meant}?")), "{shown}");
                }
            }
            Ok(_) => panic!("{name} was taken"),
        }
    }
    // A name of another tool's, far from every setting, only gets a warning.
    let loaded = from_env("VMEMKV_BENCHMARK_HOME", "x").unwrap();
    assert_eq!(loaded.warnings.len(), 1);
    assert!(loaded.warnings[0].contains("VMEMKV_BENCHMARK_HOME"));
}

/// What Kubernetes puts into every pod of a namespace with services called vmemkv, vmemkv-router,
/// and vmemkv-server. A start must not fail for it, and our own variables must still work.
#[test]
fn the_environment_of_a_pod_does_not_stop_a_start() {
    let mut variables = vec![("VMEMKV_SERVER__LISTEN", "0.0.0.0:7410")];
    variables.extend([
        ("VMEMKV_SERVER__ADVERTISE", "vmemkv-server-0:7410"),
        ("VMEMKV_PORT", "tcp://10.0.0.1:7400"),
        ("VMEMKV_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
        ("VMEMKV_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("VMEMKV_PORT_7400_TCP_PORT", "7400"),
        ("VMEMKV_PORT_7400_TCP_PROTO", "tcp"),
        ("VMEMKV_SERVICE_HOST", "10.0.0.1"),
        ("VMEMKV_SERVICE_PORT", "7400"),
        ("VMEMKV_SERVICE_PORT_GRPC", "7400"),
        ("VMEMKV_ROUTER_SERVICE_HOST", "10.0.0.2"),
        ("VMEMKV_ROUTER_SERVICE_PORT", "7400"),
        ("VMEMKV_ROUTER_PORT", "tcp://10.0.0.2:7400"),
        ("VMEMKV_ROUTER_PORT_7400_TCP", "tcp://10.0.0.2:7400"),
        ("VMEMKV_SERVER_SERVICE_HOST", "10.0.0.3"),
        ("VMEMKV_SERVER_PORT_7410_TCP_ADDR", "10.0.0.3"),
        ("VMEMKV_ADDR", "10.0.0.1:7400"),
    ]);
    let loaded = load(None, &variables, FlagSettings::default()).unwrap();
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.settings.server.listen.to_string(), "0.0.0.0:7410");
    assert_eq!(loaded.settings.server.advertise.as_deref(), Some("vmemkv-server-0:7410"));
    let expected = Settings::default();
    assert_eq!(loaded.settings.router, expected.router);
}

#[test]
fn no_setting_has_a_name_that_kubernetes_injects() {
    let loaded = load(None, &[], FlagSettings::default()).unwrap();
    assert!(loaded.paths().len() > 20);
    for path in loaded.paths() {
        let name = environment::name_of(path);
        assert!(!environment::is_injected(&name), "{name}");
    }
}

#[test]
fn a_variable_is_read_as_the_kind_of_its_setting() {
    let server = |name: &str, value: &str| from_env(name, value).unwrap().settings.server;
    assert_eq!(server("VMEMKV_SERVER__ROUTERS", "a:1, b:2").routers, ["a:1", "b:2"]);
    assert_eq!(server("VMEMKV_SERVER__ROUTERS", r#"["a:1"]"#).routers, ["a:1"]);
    assert_eq!(server("VMEMKV_SERVER__DATA", "7").data, Path::new("7"));
    assert!(!server("VMEMKV_SERVER__ENGINE__BLOOM", "false").engine.bloom);
    assert_eq!(server("VMEMKV_SERVER__LABELS__ZONE", "1").labels["zone"], "1");
    let router = from_env("VMEMKV_ROUTER__INITIAL_BOUNDARIES", "cuts").unwrap().settings.router;
    assert_eq!(router.initial_boundaries.as_deref(), Some(Path::new("cuts")));
}

#[test]
fn a_value_of_the_wrong_kind_names_its_source() {
    let failure = from_env("VMEMKV_SERVER__GRACE_MS", "soon").unwrap_err().to_string();
    assert!(failure.contains("VMEMKV_SERVER__GRACE_MS"), "{failure}");
    let failure = from_env("VMEMKV_SERVER__LISTEN", "here").unwrap_err().to_string();
    assert!(failure.contains("VMEMKV_SERVER__LISTEN"), "{failure}");
    assert!(failure.contains("server.listen"), "{failure}");
    let failure = with_file("a.toml", "[server]\ngrace_ms = \"x\"\n", &[]).unwrap_err().to_string();
    assert!(failure.contains("a.toml") && failure.contains("server.grace_ms"), "{failure}");
    let failure = with_file("a.toml", "[server\n", &[]).unwrap_err().to_string();
    assert!(failure.contains("a.toml") && failure.contains("line 1"), "{failure}");
    let failure = with_file("a.json", "{}", &[]).unwrap_err().to_string();
    assert!(failure.contains(".toml, .yaml or .yml"), "{failure}");
    let missing = load(Some(Path::new("missing.toml")), &[], FlagSettings::default());
    assert!(missing.unwrap_err().to_string().contains("missing.toml"));
}

#[test]
fn the_samples_are_accepted_and_agree() {
    let sample = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples").join(name);
        load(Some(&path), &[], FlagSettings::default()).unwrap().settings
    };
    let settings = sample("vmemkv.toml");
    assert_eq!(settings, sample("vmemkv.yaml"));
    assert_eq!(settings.server.labels["zone"], "a");
    settings.server.validate().unwrap();
    settings.router.check().unwrap();
}
