//! `vmemkv node backup`: writes the copy that a server streams.
//!
//! Invariants: DIR appears only when the copy is complete and synced (until then it is DIR.partial);
//! a file that the server names cannot leave DIR.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use serde_json::json;
use vmemkv_proto::v1;

use super::node_jobs::BackupArgs;
use super::node_target::find;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::bytes_text;
use crate::transfer::{Progress, sync_parent};

/// Runs the command.
pub(super) async fn run(args: &BackupArgs, context: &Context) -> Result {
    if fs::read_dir(&args.to).is_ok_and(|mut entries| entries.next().is_some()) {
        let message = format!("{} exists and is not empty", args.to.display());
        return Err(Failure::usage(message).with_hint("name a directory that is to be made"));
    }
    let mut node = find(context, args.node.name()).await?;
    let request = v1::BackupRequest { bytes_per_second: args.bytes_per_second };
    let mut parts = node.admin.backup(context.job(request)).await?.into_inner();
    let mut copy = Copy::begin(&args.to)?;
    let mut progress = Progress::start("backup", context.output, None);
    while let Some(part) = parts.message().await? {
        copy.part(&part)?;
        progress.update(copy.bytes, copy.files);
    }
    progress.finish();
    copy.finish(&args.to)?;
    let (files, bytes) = (copy.files, copy.bytes);
    context.output.either(
        || json!({ "node_id": node.node_id, "dir": args.to, "files": files, "bytes": bytes }),
        || format!("{files} files, {}, in {}", bytes_text(bytes), args.to.display()),
    )
}

/// A copy that is being written.
struct Copy {
    root: PathBuf,
    open: Option<(String, File)>,
    complete: bool,
    files: u64,
    bytes: u64,
}

impl Copy {
    fn begin(dir: &Path) -> Result<Self> {
        let mut name = dir.as_os_str().to_owned();
        name.push(".partial");
        let root = PathBuf::from(name);
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|error| on("remove", &root, &error))?;
        }
        fs::create_dir_all(&root).map_err(|error| on("make", &root, &error))?;
        Ok(Self { root, open: None, complete: false, files: 0, bytes: 0 })
    }

    fn part(&mut self, part: &v1::BackupResponse) -> Result {
        if !part.file.is_empty() {
            let path = self.root.join(safe(&part.file)?);
            if self.open.as_ref().is_none_or(|(name, _)| *name != part.file) {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent).map_err(|error| on("make", parent, &error))?;
                }
                let file = File::create(&path).map_err(|error| on("make", &path, &error))?;
                self.open = Some((part.file.clone(), file));
            }
            let Some((_, file)) = &self.open else { return Ok(()) };
            file.write_all_at(&part.data, part.offset)
                .map_err(|error| on("write", &path, &error))?;
            self.bytes += part.data.len() as u64;
            if part.file_done {
                file.set_len(part.file_bytes)
                    .and_then(|()| file.sync_all())
                    .and_then(|()| sync_parent(&path))
                    .map_err(|error| on("write", &path, &error))?;
                self.open = None;
                self.files += 1;
            }
        }
        self.complete |= part.done;
        Ok(())
    }

    fn finish(&self, dir: &Path) -> Result {
        if !self.complete || self.open.is_some() {
            let message = format!("the copy in {} is incomplete", self.root.display());
            return Err(Failure::failed(message).with_hint("run the backup again"));
        }
        if dir.exists() {
            fs::remove_dir(dir).map_err(|error| on("replace", dir, &error))?;
        }
        sync_parent(&self.root.join("any")).map_err(|error| on("sync", &self.root, &error))?;
        fs::rename(&self.root, dir)
            .and_then(|()| sync_parent(dir))
            .map_err(|error| on("make", dir, &error))
    }
}

/// A relative path that stays below where it is joined.
fn safe(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    if path.components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(path);
    }
    Err(Failure::failed(format!("the server names a file outside of the backup: {name:?}")))
}

fn on(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::io(format!("{action} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(file: &str, offset: u64, data: &'static [u8], done: Option<u64>) -> v1::BackupResponse {
        v1::BackupResponse {
            file: file.to_owned(),
            offset,
            data: data.into(),
            file_done: done.is_some(),
            file_bytes: done.unwrap_or_default(),
            done: false,
        }
    }

    #[test]
    fn a_copy_is_whole_or_not_there() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("copy");
        let mut copy = Copy::begin(&dir).unwrap();
        copy.part(&part("values/1", 4, b"abcd", None)).unwrap();
        copy.part(&part("values/1", 12, b"e", Some(16))).unwrap();
        copy.part(&part("MANIFEST", 0, b"m", Some(1))).unwrap();
        assert!(copy.finish(&dir).unwrap_err().to_string().contains("incomplete"));
        assert!(!dir.exists());
        copy.part(&v1::BackupResponse { done: true, ..Default::default() }).unwrap();
        copy.finish(&dir).unwrap();
        assert_eq!(fs::read(dir.join("values/1")).unwrap(), b"\0\0\0\0abcd\0\0\0\0e\0\0\0");
        assert_eq!(fs::read(dir.join("MANIFEST")).unwrap(), b"m");
        assert_eq!((copy.files, copy.bytes), (2, 6));
    }

    #[test]
    fn files_outside_are_refused() {
        for name in ["../a", "/etc/a", "a/../../b", "./a"] {
            assert!(safe(name).is_err(), "{name}");
        }
        assert!(safe("wal/0001").is_ok());
    }
}
