//! `vmemkv import`: loads a file of keys and values.
//!
//! Invariants: a file is read and checked as a whole before anything is sent, and what is sent is
//! that file: one handle reads both times, and a file that is written to meanwhile fails the import;
//! an interruption keeps a state file from which `--resume` goes on behind what was acknowledged; a
//! state file never counts more than what was stored since the import began; entries with the same
//! key are stored in their order, so that the last one wins.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use futures::StreamExt as _;
use vmemkv_proto::v1::GetInfoRequest;

use super::import_source::{Flow, Input, Opened, READ_BYTES, operations};
use crate::context::{Context, client_failure};
use crate::encoding::show_key;
use crate::failure::{Failure, Result};
use crate::output::bytes_text;
use crate::process::EndSignals;
use crate::transfer::{
    Fingerprint, Fingerprinting, FormatArgs, Progress, Records, ResumeFile, ResumePoint, Start,
    default_resume_file,
};

/// How often the state file is replaced.
const SAVE_EVERY: Duration = Duration::from_millis(500);

const EXAMPLES: &str = "\
A file is checked as a whole before anything is stored; a broken line is reported with its number and
changes nothing. From stdin (-) entries are stored as they come, up to a broken line.
If the import is interrupted, `--resume` goes on where it stopped: a small state file beside FILE
(FILE.vmemkv-import) says how much is stored. A FILE that has changed since is refused, and one
that is written to while it is imported fails. Without `--resume` an import starts over.
Of entries with the same key the last one wins.

Examples:
  vmemkv import people.jsonl                        {\"key\": \"user:1\", \"value\": \"Ada\"}
  vmemkv import people.csv --format csv --header    key,value
  vmemkv import blobs.jsonl --encoding base64
  vmemkv import big.jsonl --resume                  again, until it succeeds
  zcat people.jsonl.gz | vmemkv import -";

/// Flags of `vmemkv import`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// The file; `-`: stdin
    #[arg(value_name = "FILE|-")]
    pub file: PathBuf,
    /// The file's format.
    #[command(flatten)]
    pub format: FormatArgs,
    /// At most this many entries are under way at once
    #[arg(long, value_name = "N", default_value_t = 8192)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch: u32,
    /// Go on with an import that was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Where to keep the state [default: FILE.vmemkv-import]
    #[arg(long, value_name = "FILE")]
    pub resume_file: Option<PathBuf>,
}

/// What an import has done.
#[derive(Debug, Default)]
struct Tally {
    /// Entries that an earlier, interrupted import stored.
    skipped: u64,
    /// Entries stored now.
    entries: u64,
    /// Where the first entry began.
    from: u64,
    /// Everything before it is stored.
    next: Start,
}

/// Runs the command.
pub async fn run(args: &ImportArgs, context: &Context) -> Result {
    args.format.check()?;
    let from_stdin = args.file.as_os_str() == "-";
    let shown = if from_stdin { "stdin".to_owned() } else { args.file.display().to_string() };
    let failure = |error: io::Error| Failure::io(format!("read {shown}"), &error);
    let source: Box<dyn Read + Send>;
    let mut saver = None;
    let mut total = None;
    let mut tally = Tally::default();
    if from_stdin {
        if args.resume || args.resume_file.is_some() {
            return Err(Failure::usage("stdin cannot be resumed: import a file"));
        }
        source = Box::new(io::stdin());
    } else {
        let mut file = File::open(&args.file).map_err(failure)?;
        let metadata = file.metadata().map_err(failure)?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{shown} is a directory")));
        }
        if metadata.is_file() {
            let opened = Opened::new(&file).map_err(failure)?;
            total = Some(opened.len());
            let input;
            (file, input) = check(args, &shown, context, file, opened.len()).await?;
            if opened.has_changed().map_err(failure)? {
                return Err(changed(&shown).and_also("nothing was stored"));
            }
            let point = resume_point(args, context, input).await?;
            file.seek(SeekFrom::Start(point.offset)).map_err(failure)?;
            (tally.skipped, tally.from, tally.next) = (point.entries, point.offset, point.start());
            let path = args.resume_file.clone();
            let path = path.unwrap_or_else(|| default_resume_file(&args.file));
            let (file, saved) = (ResumeFile::new(path), Instant::now());
            let shown = shown.clone();
            saver = Some(Saver { file, point, saved, given_up: false, opened, shown });
        } else if args.resume {
            return Err(Failure::usage(format!(
                "{shown} is no regular file: it cannot be resumed"
            )));
        }
        source = Box::new(file);
    }
    let mut progress = Progress::start("import", context.output, total);
    let input = BufReader::with_capacity(READ_BYTES, source);
    let sent = send(args, context, input, &mut tally, &mut saver, &mut progress).await;
    progress.finish();
    // Whatever else went wrong may be the doing of a file that is written to.
    if let Some(Err(failure)) = saver.as_ref().map(Saver::require_unchanged) {
        return Err(changed_meanwhile(failure, &tally, saver.as_ref()));
    }
    if let Err(failure) = sent {
        return Err(stopped(failure, &tally, saver.as_mut()));
    }
    if let Some(saver) = &saver {
        let path = saver.file.path().display();
        saver.file.remove().map_err(|error| Failure::io(format!("remove {path}"), &error))?;
    }
    report(context, &tally, progress.seconds())
}

/// Reads the whole file; refuses it if a line is broken. Gives the handle back.
async fn check(
    args: &ImportArgs,
    shown: &str,
    context: &Context,
    file: File,
    len: u64,
) -> Result<(File, Fingerprint)> {
    let format = args.format;
    let mut progress = Progress::start("check", context.output, Some(len));
    let checked = tokio::task::spawn_blocking(move || {
        let input = BufReader::with_capacity(READ_BYTES, Fingerprinting::new(&file));
        let mut records = Records::new(input, format, Start::default());
        let mut entries = 0;
        while let Some(record) = records.next_record().map_err(|error| error.to_string())? {
            entries += 1;
            if entries % 1024 == 0 {
                progress.update(record.end, entries);
            }
        }
        let fingerprint = records.into_input().into_inner().fingerprint();
        Ok::<_, String>((file, fingerprint))
    });
    let checked = checked.await.map_err(|error| Failure::failed(error.to_string()))?;
    checked.map_err(|reason| Failure::failed(format!("{shown}: {reason}; nothing was stored")))
}

/// Where to begin: at the start, or where an interrupted import of the same file stopped. Who starts
/// over may have removed what was stored then, so that an old state file must not count any more
/// once the first entry is sent, even if this process is killed before it writes one.
async fn resume_point(
    args: &ImportArgs,
    context: &Context,
    input: Fingerprint,
) -> Result<ResumePoint> {
    let info = context.kv().await?.get_info(context.call(GetInfoRequest {})).await?.into_inner();
    let fresh = ResumePoint::new(input, &args.format, info.cluster_id);
    let path = args.resume_file.clone().unwrap_or_else(|| default_resume_file(&args.file));
    let file = ResumeFile::new(path);
    let shown = file.path().display();
    if !args.resume {
        if matches!(file.load(), Ok(Some(_))) {
            context.output.note(format!(
                "note: {shown} was of an interrupted import; it is removed, starting over"
            ));
        }
        file.remove().map_err(|error| {
            Failure::io(format!("remove {shown}"), &error)
                .and_also("nothing was stored")
                .with_hint("--resume-file keeps the state elsewhere")
        })?;
        return Ok(fresh);
    }
    let Some(point) = file.load().map_err(Failure::failed)? else { return Ok(fresh) };
    match point.differs_from(&fresh) {
        None => Ok(point),
        Some(reason) => Err(Failure::failed(format!("cannot resume from {shown}: {reason}"))
            .with_hint("import without --resume to start over; nothing was stored now")),
    }
}

async fn send(
    args: &ImportArgs,
    context: &Context,
    input: Input,
    tally: &mut Tally,
    saver: &mut Option<Saver>,
    progress: &mut Progress,
) -> Result {
    let client = context.client().await?;
    let flow = Flow::new(args.batch as usize);
    let mut signals = EndSignals::listen()?;
    let mut results = client.batch_put_stream(operations(input, args.format, tally.next, &flow));
    loop {
        let result = tokio::select! {
            result = results.next() => result,
            name = signals.next() => return Err(Failure::failed(format!("ended by {name}"))),
        };
        let Some(result) = result else { break };
        let Some(position) = flow.answered() else {
            return Err(Failure::failed("the client answered more than it was asked"));
        };
        if let Err(error) = result {
            let what = format!("line {} (key {})", position.line, show_key(&position.key));
            return Err(client_failure(error).while_doing(what));
        }
        tally.entries += 1;
        tally.next = position.next;
        if tally.entries.is_multiple_of(64) {
            progress.update(tally.next.offset, tally.entries);
        }
        let Some(saver) = saver.as_mut() else { continue };
        if saver.saved.elapsed() < SAVE_EVERY {
            continue;
        }
        saver.saved = Instant::now();
        saver.require_unchanged()?;
        if saver.given_up {
            continue;
        }
        if let Err(failure) = saver.save(tally) {
            // An input on a read-only medium is still an input.
            let warning = failure.with_hint("the import goes on, but cannot be resumed");
            context.output.note(format!("warning: {warning}"));
            saver.given_up = true;
        }
    }
    match flow.broken_line() {
        Some(broken) => Err(Failure::failed(broken.to_string())),
        None => Ok(()),
    }
}

/// Keeps the state file, for as long as the input is the one that was checked.
struct Saver {
    file: ResumeFile,
    point: ResumePoint,
    saved: Instant,
    /// It cannot be written.
    given_up: bool,
    opened: Opened,
    shown: String,
}

impl Saver {
    /// Everything that has been read so far is what was checked.
    fn require_unchanged(&self) -> Result {
        match self.opened.has_changed() {
            Ok(false) => Ok(()),
            Ok(true) => Err(changed(&self.shown)),
            Err(error) => Err(Failure::io(format!("read {}", self.shown), &error)),
        }
    }

    fn save(&mut self, tally: &Tally) -> Result {
        self.point.offset = tally.next.offset;
        self.point.lines = tally.next.lines;
        self.point.entries = tally.skipped + tally.entries;
        let path = self.file.path().display();
        self.file
            .save(&self.point)
            .map_err(|error| Failure::io(format!("write the state file {path}"), &error))
    }
}

fn changed(shown: &str) -> Failure {
    Failure::failed(format!("{shown}: the file changed while it was imported"))
}

/// What was stored may be of the file that was checked or of the one that it became: there is
/// nothing to go on from.
fn changed_meanwhile(failure: Failure, tally: &Tally, saver: Option<&Saver>) -> Failure {
    let stored = tally.skipped + tally.entries;
    let failure = failure.and_also(format!("{stored} entries, old or new, were stored"));
    match saver.map(|saver| (saver.file.path().display(), saver.file.remove())) {
        Some((path, Err(error))) => failure
            .with_hint(format!("import it again, without --resume; cannot remove {path}: {error}")),
        _ => failure.with_hint("import it again once it is complete"),
    }
}

/// Why an import did not reach its end, how far it came, and how to go on.
fn stopped(failure: Failure, tally: &Tally, saver: Option<&mut Saver>) -> Failure {
    let stored = tally.skipped + tally.entries;
    let mut failure = failure.and_also(format!("{stored} entries before it were stored"));
    if let Some(saver) = saver.filter(|_| stored > 0) {
        failure = match saver.save(tally) {
            Ok(()) => failure.with_hint("run it again with --resume to go on from there"),
            Err(error) => failure.with_hint(format!("it cannot be resumed ({error})")),
        };
    }
    failure
}

fn report(context: &Context, tally: &Tally, seconds: f64) -> Result {
    let (entries, skipped) = (tally.entries, tally.skipped);
    let bytes = tally.next.offset.saturating_sub(tally.from);
    context.output.either(
        || {
            serde_json::json!({
                "entries": entries, "skipped": skipped, "bytes": bytes, "seconds": seconds,
            })
        },
        || {
            let rate = entries as f64 / seconds.max(1e-9);
            let before = match skipped {
                0 => String::new(),
                _ => format!(" ({skipped} were stored before)"),
            };
            let size = bytes_text(bytes);
            format!("imported {entries} entries{before}, {size}, in {seconds:.1} s ({rate:.0}/s)")
        },
    )
}
