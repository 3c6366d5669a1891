//! What a power cut leaves, computed from the journal of a [`CrashDisk`](super::CrashDisk).
//!
//! Invariants: what was synced before the cut is there; everything else is decided by the seed
//! alone, so the same journal and [`PowerCut`] give the same image.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SeededRandom;
use super::crash_journal::{Event, Journal, Node, NodeId, PAGE, Page};

/// How much of what was not synced survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Everything, as if it had been synced.
    Everything,
    /// Any part, at another rate for each file.
    Some,
}

/// How the power is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PowerCut {
    /// Decides what survives.
    pub seed: u64,
    /// How much of what was not synced survives.
    pub keep: Keep,
    /// Bytes that the drive writes at once: 512 or 4096.
    pub unit: u64,
}

impl PowerCut {
    /// Only what was synced survives.
    pub fn strict() -> Self {
        Self { seed: 0, keep: Keep::Nothing, unit: 4096 }
    }

    /// A seeded part of the rest survives, torn at 512 B for odd seeds, at 4 KiB for even ones.
    pub fn random(seed: u64) -> Self {
        Self { seed, keep: Keep::Some, unit: if seed.is_multiple_of(2) { 4096 } else { 512 } }
    }
}

struct Dice {
    random: SeededRandom,
    keep: Keep,
    /// Of 4.
    rate: u64,
}

impl Dice {
    fn new_rate(&mut self) {
        self.rate = self.random.below(5);
    }

    fn keeps(&mut self) -> bool {
        match self.keep {
            Keep::Nothing => false,
            Keep::Everything => true,
            Keep::Some => self.random.below(4) < self.rate,
        }
    }
}

pub(super) fn write_image(
    journal: &Journal,
    end: Option<usize>,
    target: &Path,
    cut: &PowerCut,
) -> io::Result<()> {
    let events = &journal.events[..end.unwrap_or(journal.events.len())];
    let mut dice = Dice { random: SeededRandom(cut.seed), keep: cut.keep, rate: 2 };
    let (names, folders) = surviving_names(journal, events, &mut dice);
    fs::create_dir_all(target)?;
    for folder in &folders {
        fs::create_dir_all(target.join(folder))?;
    }
    let mut contents = contents(journal, events, &names);
    for (path, node) in &names {
        let Some(mut content) = contents.remove(node) else { continue };
        dice.new_rate();
        content.keep_some(cut.unit, &mut dice);
        content.keep_mapped(&journal.nodes[*node], end.is_none(), cut.unit, &mut dice)?;
        content.write(&target.join(path))?;
    }
    Ok(())
}

type Names = BTreeMap<PathBuf, NodeId>;

/// The names and folders that are there after the cut.
fn surviving_names(
    journal: &Journal,
    events: &[Event],
    dice: &mut Dice,
) -> (Names, BTreeSet<PathBuf>) {
    let mut last_sync = HashMap::new();
    for (i, event) in events.iter().enumerate() {
        if let Event::SyncDir(folder) = event {
            last_sync.insert(folder.as_path(), i);
        }
    }
    let mut names = journal.initial_names.clone();
    let mut folders: BTreeSet<PathBuf> = journal.initial_dirs.iter().cloned().collect();
    let mut lost = HashSet::new();
    dice.new_rate();
    for (i, event) in events.iter().enumerate() {
        let (path, node) = match event {
            Event::Create(path, node) | Event::Remove(path, node) => (path, Some(*node)),
            Event::Rename(to, node) => (to, Some(*node)),
            Event::MakeDir(path) => (path, None),
            _ => continue,
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        let durable = last_sync.get(folder).is_some_and(|&sync| sync > i);
        // In order for each file: behind a step that is lost, only a durable one counts.
        let kept = durable || (dice.keeps() && node.is_none_or(|node| !lost.contains(&node)));
        if !kept {
            lost.extend(node);
            continue;
        }
        match event {
            Event::Create(path, node) => {
                names.insert(path.clone(), *node);
            }
            Event::Rename(to, node) => {
                names.retain(|_, other| other != node);
                names.insert(to.clone(), *node);
            }
            Event::Remove(path, node) => {
                if names.get(path) == Some(node) {
                    names.remove(path);
                }
            }
            _ => {
                folders.insert(path.clone());
            }
        }
    }
    let is_there = |path: &Path, folders: &BTreeSet<PathBuf>| {
        let mut above = path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        above.all(|folder| folders.contains(folder))
    };
    let all = folders.clone();
    folders.retain(|folder| is_there(folder, &all));
    names.retain(|path, _| is_there(path, &folders));
    (names, folders)
}

enum Pending {
    Write(u64, Arc<[u8]>, Range<usize>),
    SetLen(u64),
}

/// The content of one file: what is durable, and what is not yet.
#[derive(Default)]
struct Content {
    len: u64,
    pages: BTreeMap<u64, Page>,
    pending: Vec<Pending>,
}

fn contents(journal: &Journal, events: &[Event], names: &Names) -> HashMap<NodeId, Content> {
    let start = |node: NodeId| {
        let Node { initial_len: len, initial: pages, .. } = &journal.nodes[node];
        (node, Content { len: *len, pages: pages.clone(), pending: Vec::new() })
    };
    let mut contents: HashMap<_, _> = names.values().map(|node| start(*node)).collect();
    for event in events {
        match event {
            Event::Write(node, offset, bytes) => {
                if let Some(content) = contents.get_mut(node) {
                    let all = 0..bytes.len();
                    content.pending.push(Pending::Write(*offset, Arc::clone(bytes), all));
                }
            }
            Event::SetLen(node, len) => {
                if let Some(content) = contents.get_mut(node) {
                    content.pending.push(Pending::SetLen(*len));
                }
            }
            Event::Sync(node, range, len, pages) => {
                if let Some(content) = contents.get_mut(node) {
                    content.sync(range, *len, pages);
                }
            }
            _ => {}
        }
    }
    contents
}

impl Content {
    /// The range is durable as it was, and so is the length (`fdatasync` includes it).
    fn sync(&mut self, range: &Range<u64>, len: u64, pages: &[(u64, Page)]) {
        self.len = len;
        self.pages.extend(pages.iter().cloned());
        for old in std::mem::take(&mut self.pending) {
            let Pending::Write(offset, bytes, part) = old else { continue };
            let in_part = |at: u64| {
                (at.saturating_sub(offset).min(bytes.len() as u64) as usize)
                    .clamp(part.start, part.end)
            };
            let (before, behind) = (part.start..in_part(range.start), in_part(range.end)..part.end);
            for rest in [before, behind] {
                if !rest.is_empty() {
                    self.pending.push(Pending::Write(offset, Arc::clone(&bytes), rest));
                }
            }
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let (now, behind) = rest.split_at(rest.len().min(PAGE as usize - within));
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(page)[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = behind;
        }
        self.len = self.len.max(offset + bytes.len() as u64);
    }

    fn cut(&mut self, len: u64) {
        if len < self.len {
            let kept = len.div_ceil(PAGE);
            self.pages.retain(|page, _| *page < kept);
            if !len.is_multiple_of(PAGE)
                && let Some(page) = self.pages.get_mut(&(len / PAGE))
            {
                Arc::make_mut(page)[(len % PAGE) as usize..].fill(0);
            }
        }
        self.len = len;
    }

    fn keep_some(&mut self, unit: u64, dice: &mut Dice) {
        for pending in std::mem::take(&mut self.pending) {
            match pending {
                Pending::SetLen(len) if dice.keeps() => self.cut(len),
                Pending::SetLen(_) => {}
                Pending::Write(offset, bytes, part) => {
                    let end = offset + part.end as u64;
                    let mut at = offset + part.start as u64;
                    while at < end {
                        let stop = end.min((at / unit + 1) * unit);
                        if dice.keeps() {
                            self.put(at, &bytes[(at - offset) as usize..(stop - offset) as usize]);
                        }
                        at = stop;
                    }
                    // The length may be there without the bytes.
                    if dice.keeps() {
                        self.len = self.len.max(end);
                    }
                }
            }
        }
    }

    /// Stores through a mapping that were not synced; see [`super::CrashDisk`] on the past.
    fn keep_mapped(
        &mut self,
        node: &Node,
        now: bool,
        unit: u64,
        dice: &mut Dice,
    ) -> io::Result<()> {
        let Some(file) = node.mapped.as_ref().filter(|_| dice.keep != Keep::Nothing) else {
            return Ok(());
        };
        let mut bytes = [0; PAGE as usize];
        for page in 0..self.len.min(file.metadata()?.len()) / PAGE {
            if !now && self.pages.contains_key(&page) {
                continue;
            }
            file.read_exact_at(&mut bytes, page * PAGE)?;
            let durable = self.pages.get(&page).map(Arc::clone);
            let differs = durable.map_or(bytes != [0; PAGE as usize], |page| bytes != *page);
            if !differs {
                continue;
            }
            for (i, piece) in bytes.chunks(unit as usize).enumerate() {
                if dice.keeps() {
                    self.put(page * PAGE + i as u64 * unit, piece);
                }
            }
        }
        Ok(())
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let file = fs::File::create(path)?;
        file.set_len(self.len)?;
        for (page, bytes) in &self.pages {
            let offset = page * PAGE;
            let len = self.len.saturating_sub(offset).min(PAGE) as usize;
            file.write_all_at(&bytes[..len], offset)?;
        }
        Ok(())
    }
}
