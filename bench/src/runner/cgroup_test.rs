//! Where our cgroup is, from what kernels of both kinds say.

use super::*;

const V1_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const V1_GROUPS: &str = "4:memory:/jobs/17\n1:cpu,cpuacct:/\n0::/\n";
const V2_MOUNTS: &str = "\
29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
";

#[test]
fn v1_is_found_beside_a_v2_without_memory() {
    let place = locate(V1_GROUPS, V1_MOUNTS).expect("place");
    assert_eq!(place.version, Version::V1);
    assert_eq!(place.group, Path::new("/sys/fs/cgroup/memory/jobs/17"));
}

#[test]
fn a_group_that_is_the_root_of_the_mount() {
    let mounts = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    for (path, expected) in [
        ("/docker/ab", "/sys/fs/cgroup/memory"),
        ("/docker/ab/inner", "/sys/fs/cgroup/memory/inner"),
    ] {
        let place = locate(&format!("4:memory:{path}\n"), mounts).expect("place");
        assert_eq!(place.group, Path::new(expected));
    }
}

#[test]
fn v2_is_found() {
    let place = locate("0::/user.slice/a.scope\n", V2_MOUNTS).expect("place");
    assert_eq!(place.version, Version::V2);
    assert_eq!(place.group, Path::new("/sys/fs/cgroup/user.slice/a.scope"));
    assert_eq!(place.mount, Path::new("/sys/fs/cgroup"));
}

#[test]
fn nothing_is_found_where_nothing_is() {
    assert_eq!(locate("", V2_MOUNTS), None);
    assert_eq!(locate("0::/\n", ""), None);
    assert_eq!(locate("4:memory:/a\n", "31 23 0:28 / /a rw - tmpfs tmpfs rw\n"), None);
    assert_eq!(locate("no colons\n", "no dash\n"), None);
}

#[test]
fn v2_takes_the_nearest_group_that_delegates() {
    let mount = tempfile::tempdir().expect("dir");
    let group = mount.path().join("a/b");
    fs::create_dir_all(&group).expect("mkdir");
    let place = Place { version: Version::V2, group, mount: mount.path().to_owned() };
    assert!(delegating(&place).is_err());
    fs::write(mount.path().join("cgroup.subtree_control"), "cpu memory\n").expect("write");
    assert_eq!(delegating(&place).expect("root"), mount.path());
    fs::write(mount.path().join("a/cgroup.subtree_control"), "memory\n").expect("write");
    assert_eq!(delegating(&place).expect("a"), mount.path().join("a"));
}

#[test]
fn fields_are_read_by_their_whole_name() {
    let text = "total_swap 9\nswap 4096\nswapped 7\n";
    assert_eq!(field(text, "swap"), Some(4096));
    assert_eq!(field(text, "cache"), None);
    assert_eq!(field("oom_kill x\n", "oom_kill"), None);
}

#[test]
fn groups_of_dead_processes_are_removed() {
    let parent = tempfile::tempdir().expect("dir");
    let own = format!("{NAME}{}", std::process::id());
    for name in ["vmemkv-bench-999999999", "vmemkv-bench-x", "other", &own] {
        fs::create_dir(parent.path().join(name)).expect("mkdir");
    }
    remove_stale(parent.path());
    assert!(!parent.path().join("vmemkv-bench-999999999").exists());
    for name in ["vmemkv-bench-x", "other", &own] {
        assert!(parent.path().join(name).exists(), "{name}");
    }
}
