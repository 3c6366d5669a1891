//! What the service counts.
//!
//! Invariants: counters only rise; the list of methods is fixed when the process starts, so that a
//! caller cannot make it grow.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message as _;

/// Calls of one method.
#[derive(Debug, Default)]
pub(crate) struct MethodStats {
    /// Calls that began.
    pub(crate) calls: AtomicU64,
    /// Calls that ended in an error.
    pub(crate) errors: AtomicU64,
    /// Calls whose caller left before they ended.
    pub(crate) abandoned: AtomicU64,
}

/// Counters of the service.
pub(crate) struct Metrics {
    /// By path (`/vmemkv.v1.Kv/Get`), sorted; the last one is for every other path.
    methods: Vec<(String, Arc<MethodStats>)>,
    other: Arc<MethodStats>,
    /// Work that was stopped because its deadline had passed.
    pub(crate) stopped_by_deadline: AtomicU64,
    /// Work that was stopped because its caller had gone.
    pub(crate) stopped_by_caller: AtomicU64,
    /// Calls refused because too many were under way.
    pub(crate) shed: AtomicU64,
    /// Calls refused for want of a lease or a registration.
    pub(crate) refused_no_lease: AtomicU64,
    /// Calls refused because they came to the wrong place.
    pub(crate) misrouted: AtomicU64,
    /// Calls under way.
    pub(crate) in_flight: AtomicU64,
}

impl Metrics {
    /// All zero.
    pub(crate) fn new() -> Self {
        let mut methods: Vec<_> = known_paths()
            .into_iter()
            .map(|path| (path, Arc::new(MethodStats::default())))
            .collect();
        methods.sort_by(|a, b| a.0.cmp(&b.0));
        Self {
            methods,
            other: Arc::default(),
            stopped_by_deadline: AtomicU64::new(0),
            stopped_by_caller: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            refused_no_lease: AtomicU64::new(0),
            misrouted: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
        }
    }

    /// The counters of the method at `path`.
    pub(crate) fn method(&self, path: &str) -> &Arc<MethodStats> {
        match self.methods.binary_search_by(|(known, _)| known.as_str().cmp(path)) {
            Ok(at) => &self.methods[at].1,
            Err(_) => &self.other,
        }
    }

    /// Counts one.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters in the text format of Prometheus.
    pub(crate) fn write_prometheus(&self, out: &mut String) {
        let mut family = |name: &str, read: fn(&MethodStats) -> &AtomicU64| {
            let _ = writeln!(out, "# TYPE vmemkv_rpc_{name}_total counter");
            let others = ("other".to_owned(), Arc::clone(&self.other));
            for (path, stats) in self.methods.iter().chain([&others]) {
                let value = read(stats).load(Ordering::Relaxed);
                if value > 0 {
                    let method = path.trim_start_matches('/');
                    let _ = writeln!(out, "vmemkv_rpc_{name}_total{{method=\"{method}\"}} {value}");
                }
            }
        };
        family("calls", |stats| &stats.calls);
        family("errors", |stats| &stats.errors);
        family("abandoned", |stats| &stats.abandoned);
        for (name, kind, counter) in [
            ("stopped_by_deadline_total", "counter", &self.stopped_by_deadline),
            ("stopped_by_caller_total", "counter", &self.stopped_by_caller),
            ("shed_total", "counter", &self.shed),
            ("refused_no_lease_total", "counter", &self.refused_no_lease),
            ("misrouted_total", "counter", &self.misrouted),
            ("in_flight", "gauge", &self.in_flight),
        ] {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(out, "# TYPE vmemkv_rpc_{name} {kind}\nvmemkv_rpc_{name} {value}");
        }
    }
}

/// The paths of all methods of the API.
fn known_paths() -> Vec<String> {
    let Ok(set) = prost_types::FileDescriptorSet::decode(vmemkv_proto::FILE_DESCRIPTOR_SET) else {
        return Vec::new();
    };
    let mut paths = Vec::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                paths.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_known_and_others_share_one() {
        let metrics = Metrics::new();
        Metrics::count(&metrics.method("/vmemkv.v1.Kv/Get").calls);
        Metrics::count(&metrics.method("/made.up/One").calls);
        Metrics::count(&metrics.method("/made.up/Two").calls);
        let mut text = String::new();
        metrics.write_prometheus(&mut text);
        assert!(text.contains("vmemkv_rpc_calls_total{method=\"vmemkv.v1.Kv/Get\"} 1\n"), "{text}");
        assert!(text.contains("vmemkv_rpc_calls_total{method=\"other\"} 2\n"), "{text}");
        assert!(text.contains("vmemkv_rpc_in_flight 0\n"), "{text}");
    }
}
