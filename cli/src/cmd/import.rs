//! `vmemkv import`: loads a file of keys and values.
//!
//! Invariants: a file is read and checked as a whole before anything is sent; an interruption keeps
//! a state file from which `--resume` goes on behind what was acknowledged; entries with the same
//! key are stored in their order, so that the last one wins.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use futures::StreamExt as _;
use vmemkv_proto::v1::GetInfoRequest;

use super::import_source::{Flow, Input, READ_BYTES, operations};
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
(FILE.vmemkv-import) says how much is stored. A FILE that has changed since is refused.
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
            total = Some(metadata.len());
            let input = check(args, &shown, context, metadata.len()).await?;
            let point = resume_point(args, context, input).await?;
            file.seek(SeekFrom::Start(point.offset)).map_err(failure)?;
            (tally.skipped, tally.from, tally.next) = (point.entries, point.offset, point.start());
            let path = args.resume_file.clone();
            let path = path.unwrap_or_else(|| default_resume_file(&args.file));
            saver = Some(Saver { file: ResumeFile::new(path), point, saved: Instant::now() });
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
    if let Err(failure) = sent {
        return Err(stopped(failure, &tally, saver.as_mut()));
    }
    if let Some(saver) = &saver {
        let path = saver.file.path().display();
        saver.file.remove().map_err(|error| Failure::io(format!("remove {path}"), &error))?;
    }
    report(context, &tally, progress.seconds())
}

/// Reads the whole file; refuses it if a line is broken.
async fn check(args: &ImportArgs, shown: &str, context: &Context, len: u64) -> Result<Fingerprint> {
    let (path, format) = (args.file.clone(), args.format);
    let mut progress = Progress::start("check", context.output, Some(len));
    let checked = tokio::task::spawn_blocking(move || {
        let file = File::open(&path).map_err(|error| error.to_string())?;
        let input = BufReader::with_capacity(READ_BYTES, Fingerprinting::new(file));
        let mut records = Records::new(input, format, Start::default());
        let mut entries = 0;
        while let Some(record) = records.next_record().map_err(|error| error.to_string())? {
            entries += 1;
            if entries % 1024 == 0 {
                progress.update(record.end, entries);
            }
        }
        Ok::<_, String>(records.into_input().into_inner().fingerprint())
    });
    let checked = checked.await.map_err(|error| Failure::failed(error.to_string()))?;
    checked.map_err(|reason| Failure::failed(format!("{shown}: {reason}; nothing was stored")))
}

/// Where to begin: at the start, or where an interrupted import of the same file stopped.
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
                "note: {shown} is of an interrupted import; starting over (--resume goes on)"
            ));
        }
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
        let due = saver.as_mut().filter(|saver| saver.saved.elapsed() >= SAVE_EVERY);
        if let Some(Err(failure)) = due.map(|saver| saver.save(tally)) {
            // An input on a read-only medium is still an input.
            let warning = failure.with_hint("the import goes on, but cannot be resumed");
            context.output.note(format!("warning: {warning}"));
            *saver = None;
        }
    }
    match flow.broken_line() {
        Some(broken) => Err(Failure::failed(broken.to_string())),
        None => Ok(()),
    }
}

/// Keeps the state file.
struct Saver {
    file: ResumeFile,
    point: ResumePoint,
    saved: Instant,
}

impl Saver {
    fn save(&mut self, tally: &Tally) -> Result {
        self.point.offset = tally.next.offset;
        self.point.lines = tally.next.lines;
        self.point.entries = tally.skipped + tally.entries;
        self.saved = Instant::now();
        let path = self.file.path().display();
        self.file
            .save(&self.point)
            .map_err(|error| Failure::io(format!("write the state file {path}"), &error))
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
