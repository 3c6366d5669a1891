//! `vmemkv export`: writes keys and values to a file, in byte order.
//!
//! Invariants: FILE appears, whole and synced, when the export is done; until then it is FILE.partial,
//! which `--resume` cuts back to its last whole record and goes on behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Args;
use futures::TryStreamExt as _;
use vmemkv_client::KeyRange;

use crate::context::{Context, client_failure};
use crate::failure::{Failure, Result};
use crate::output::bytes_text;
use crate::process::EndSignals;
use crate::range::RangeArgs;
use crate::transfer::{
    FormatArgs, Progress, RecordWriter, Records, Start, WriteError, sync_parent,
};

const EXAMPLES: &str = "\
Writes to FILE.partial and renames it when it is complete. `--resume` goes on with a FILE.partial that
an interrupted export has left (with the same flags). Writes that run meanwhile are in the file or not.
Data that is not UTF-8 needs --encoding hex or base64.

Examples:
  vmemkv export all.jsonl
  vmemkv export users.tsv --format tsv --prefix user:
  vmemkv export - --encoding base64 | gzip > all.jsonl.gz";

/// Flags of `vmemkv export`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExportArgs {
    /// The file, replaced if it exists; `-`: stdout
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// The keys.
    #[command(flatten)]
    pub range: RangeArgs,
    /// The file's format.
    #[command(flatten)]
    pub format: FormatArgs,
    /// Go on with an export that was interrupted
    #[arg(long)]
    pub resume: bool,
}

/// What has been written.
#[derive(Debug, Default)]
struct Tally {
    entries: u64,
    bytes: u64,
    /// Entries that were in the partial file.
    skipped: u64,
    /// An entry cannot be written in this encoding: going on would not help.
    is_unwritable: bool,
}

/// Runs the command.
pub async fn run(args: &ExportArgs, context: &Context) -> Result {
    args.format.check()?;
    let range = args.range.to_range(args.format.encoding)?;
    let to_stdout = args.file.as_os_str() == "-";
    let special = fs::metadata(&args.file).is_ok_and(|metadata| !metadata.is_file());
    if args.resume && (to_stdout || special) {
        return Err(Failure::usage("only an export to a file can be resumed"));
    }
    let mut progress = Progress::start("export", context.output, None);
    let mut tally = Tally::default();
    if to_stdout || special {
        let output: Box<dyn Write + Send> = if to_stdout {
            Box::new(io::stdout())
        } else {
            let file = OpenOptions::new().write(true).open(&args.file);
            Box::new(file.map_err(|error| failure_on(&args.file, &error))?)
        };
        let mut writer =
            RecordWriter::new(BufWriter::with_capacity(256 << 10, output), args.format);
        writer.header().map_err(|error| failure_on(&args.file, &error))?;
        write(args, context, range, &mut writer, &mut tally, &mut progress).await?;
        writer.flush().map_err(|error| failure_on(&args.file, &error))?;
    } else {
        to_file(args, context, range, &mut tally, &mut progress).await?;
    }
    progress.finish();
    report(context, to_stdout, &tally, progress.seconds())
}

async fn to_file(
    args: &ExportArgs,
    context: &Context,
    mut range: KeyRange,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result {
    let mut name = args.file.clone().into_os_string();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let failure = |error: io::Error| failure_on(&partial, &error);
    let left = if args.resume { left_by(&partial, args.format)? } else { None };
    let (file, header_is_due) = match left {
        Some(left) => {
            if !range.contains(&left.last_key) {
                let shown = partial.display();
                return Err(Failure::failed(format!("{shown} is of an export of another range"))
                    .with_hint("export without --resume to start over"));
            }
            let file = OpenOptions::new().append(true).open(&partial).map_err(failure)?;
            file.set_len(left.end).map_err(failure)?;
            tally.skipped = left.entries;
            let (_, end) = range.clone().into_wire();
            range = KeyRange::new(after(&left.last_key).into(), end);
            (file, false)
        }
        None => (File::create(&partial).map_err(failure)?, true),
    };
    let mut writer = RecordWriter::new(BufWriter::with_capacity(256 << 10, file), args.format);
    if header_is_due {
        writer.header().map_err(failure)?;
    }
    let written = write(args, context, range, &mut writer, tally, progress).await;
    writer.flush().map_err(failure)?;
    if let Err(failure) = written {
        if tally.is_unwritable {
            fs::remove_file(&partial).map_err(|error| failure_on(&partial, &error))?;
            return Err(failure);
        }
        let hint = format!("{} is incomplete; --resume goes on with it", partial.display());
        return Err(failure.with_hint(hint));
    }
    let file = writer.into_output().into_inner().map_err(|error| failure(error.into_error()))?;
    file.sync_all().map_err(failure)?;
    fs::rename(&partial, &args.file).map_err(failure)?;
    sync_parent(&args.file).map_err(failure)
}

async fn write<W: Write>(
    args: &ExportArgs,
    context: &Context,
    range: KeyRange,
    writer: &mut RecordWriter<W>,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result {
    if range.is_empty() {
        return Ok(());
    }
    let client = context.client().await?;
    let mut signals = EndSignals::listen()?;
    let mut entries = client.scan(range).stream();
    loop {
        let entry = tokio::select! {
            entry = entries.try_next() => entry.map_err(client_failure)?,
            name = signals.next() => {
                let message = format!("ended by {name} after {} entries", tally.entries);
                return Err(Failure::failed(message));
            }
        };
        let Some(entry) = entry else { return Ok(()) };
        let bytes = writer.write(&entry.key, &entry.value).map_err(|error| match error {
            WriteError::Encoding(reason) => {
                tally.is_unwritable = true;
                Failure::failed(reason)
            }
            WriteError::Io(error) => failure_on(&args.file, &error),
        })?;
        tally.entries += 1;
        tally.bytes += bytes;
        if tally.entries.is_multiple_of(64) {
            progress.update(tally.bytes, tally.entries);
        }
    }
}

/// What an interrupted export has left.
struct Left {
    last_key: Bytes,
    end: u64,
    entries: u64,
}

/// Reads a partial file up to its last whole record.
fn left_by(partial: &Path, format: FormatArgs) -> Result<Option<Left>> {
    let file = match File::open(partial) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure_on(partial, &error)),
    };
    let mut records = Records::new(BufReader::new(file), format, Start::default());
    let mut left = None;
    let mut entries = 0;
    // A record that cannot be read is where the interruption cut the file.
    while let Ok(Some(record)) = records.next_record() {
        if !record.terminated {
            break;
        }
        entries += 1;
        left = Some(Left { last_key: record.key, end: record.end, entries });
    }
    Ok(left)
}

/// The first key behind `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn failure_on(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format!("write {}", path.display()), error)
}

fn report(context: &Context, to_stdout: bool, tally: &Tally, seconds: f64) -> Result {
    let text = if context.output.is_json() {
        serde_json::json!({
            "entries": tally.entries, "skipped": tally.skipped, "bytes": tally.bytes,
            "seconds": seconds,
        })
        .to_string()
    } else {
        let size = bytes_text(tally.bytes);
        format!("exported {} entries, {size}, in {seconds:.1} s", tally.entries)
    };
    // Stdout holds the data then.
    if to_stdout {
        context.output.note(text);
        return Ok(());
    }
    context.output.line(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_is_cut_back_to_its_last_whole_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.partial");
        assert!(left_by(&path, FormatArgs::default()).unwrap().is_none());
        let whole = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
        for cut in ["", "{\"key\":\"c\",\"val", "{\"key\":\"c\",\"value\":\"3\"}", "\0\0\0"] {
            fs::write(&path, format!("{whole}{cut}")).unwrap();
            let left = left_by(&path, FormatArgs::default()).unwrap().unwrap();
            assert_eq!(left.last_key, "b", "{cut}");
            assert_eq!((left.end, left.entries), (whole.len() as u64, 2), "{cut}");
        }
        fs::write(&path, "{\"key\":\"c\"").unwrap();
        assert!(left_by(&path, FormatArgs::default()).unwrap().is_none());
    }
}
