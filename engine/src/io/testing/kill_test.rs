//! `kill` while others write: files and journal of one moment.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{CrashDisk, PowerCut};
use crate::io::{Disk, replace_file};

#[test]
fn a_kill_is_one_moment_also_while_files_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let disk = CrashDisk::new(dir.path().join("0")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0u32.. {
                let name = format!("{}", i % 7);
                replace_file(&*disk, Path::new(&name), &i.to_le_bytes()).unwrap();
                if i % 3 == 0 {
                    disk.remove(Path::new(&name)).unwrap();
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let check = || {
            for i in 1..60 {
                let killed = disk.kill(&dir.path().join(i.to_string()))?;
                for name in killed.list(Path::new(""))? {
                    killed.open(Path::new(&name))?;
                }
                let cut = dir.path().join(format!("{i} cut"));
                killed.materialise(None, &cut, &PowerCut::random(i))?;
            }
            Ok::<_, std::io::Error>(())
        };
        let result = check();
        stop.store(true, Ordering::Relaxed);
        result.unwrap();
    });
}
