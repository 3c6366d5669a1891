//! What happens when the drive cannot give a mapped page of the value log: the kernel sends SIGBUS,
//! and the process says which file and offset it was, and stops rather than serve garbage.
//!
//! Invariants: the handler is installed at most once in a process and touches nothing but the table
//! below, the stack and standard error: it is async-signal-safe; a fault outside our mappings goes
//! to whoever handled it before; a range is in the table from before its first use to after its
//! last.

use std::path::Path;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The exit status of a process that a mapped read stopped: `EX_IOERR`.
pub const EXIT_BUS_ERROR: i32 = 74;

/// Ranges that are known at once; each engine has two. A fault in one more is not ours, then.
const RANGES: usize = 256;
/// Bytes of a folder's name that are shown; of a longer one the end.
const FOLDER_BYTES: usize = 256;

/// A mapped range. Free while `start` is 0.
struct Slot {
    /// Stored last with Release, cleared first: pairs with the Acquire in the handler. The handler
    /// looks at the rest only if the fault lies in the range, so while it is in use.
    start: AtomicUsize,
    len: AtomicUsize,
    segment_bytes: AtomicU64,
    folder_len: AtomicUsize,
    folder: [AtomicU8; FOLDER_BYTES],
}

/// `start` of a slot that is being filled.
const TAKEN: usize = 1;

static SLOTS: [Slot; RANGES] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        segment_bytes: AtomicU64::new(0),
        folder_len: AtomicUsize::new(0),
        folder: [const { AtomicU8::new(0) }; FOLDER_BYTES],
    }
}; RANGES];

static INSTALL: Once = Once::new();
/// What was there before: a leaked box, as a handler may run at any time.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// A range in the table; taken out when dropped.
pub(super) struct Registration(Option<&'static Slot>);

/// Enters a range of mapped segments of `segment_bytes` each, whose files lie in `folder`.
pub(super) fn register(
    start: usize,
    len: usize,
    segment_bytes: u64,
    folder: &Path,
) -> Registration {
    let free = SLOTS.iter().find(|slot| {
        // Relaxed: the content is published by the store below.
        slot.start.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    let Some(slot) = free else { return Registration(None) };
    let name = folder.as_os_str().as_encoded_bytes();
    let name = &name[name.len().saturating_sub(FOLDER_BYTES)..];
    for (to, byte) in slot.folder.iter().zip(name) {
        to.store(*byte, Ordering::Relaxed);
    }
    slot.folder_len.store(name.len(), Ordering::Relaxed);
    slot.len.store(len, Ordering::Relaxed);
    slot.segment_bytes.store(segment_bytes, Ordering::Relaxed);
    slot.start.store(start, Ordering::Release);
    Registration(Some(slot))
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.start.store(0, Ordering::Release);
        }
    }
}

/// Installs the handler, once in a process; later calls do nothing. If the system refuses, the
/// fault stops the process all the same, without a word.
pub(crate) fn install() {
    INSTALL.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value: the default action, no flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above; both pointers are to values of this frame.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: asks what is there; writes only to `previous`.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) } != 0 {
            return;
        }
        // Before the handler that reads it. Release: pairs with the Acquire there.
        PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
        // SAFETY: the handler is async-signal-safe and has the signature that SA_SIGINFO asks for.
        let _ = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    });
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo; a code above 0 says that it made the signal itself,
    // and then for SIGBUS the address is set. One that somebody sent has none.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    if let Some(address) = address {
        for slot in &SLOTS {
            let start = slot.start.load(Ordering::Acquire);
            if start > TAKEN && address.wrapping_sub(start) < slot.len.load(Ordering::Relaxed) {
                say(slot, address - start);
                // SAFETY: ends the process at once; runs no code of anybody.
                unsafe { libc::_exit(EXIT_BUS_ERROR) };
            }
        }
    }
    pass_on(signal, info, context);
}

/// Hands a fault that is not ours to the handler of before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: null or the leaked box of `install`, which nobody changes.
    let previous = unsafe { previous.as_ref() };
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the default action is set, and the fault happens again when this returns (or the
        // signal is raised again, if somebody sent it): the process ends as without a handler.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal);
            }
        }
        return;
    }
    let with_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: whoever installed it did so with the signature that its flags say.
    unsafe {
        if with_info {
            type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, Full>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal);
        }
    }
}

/// Writes one line to standard error, without allocating.
fn say(slot: &Slot, offset: usize) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let segment_bytes = slot.segment_bytes.load(Ordering::Relaxed).max(1);
    line.push(b"vmemkv: the drive could not read a page of ");
    let folder_len = slot.folder_len.load(Ordering::Relaxed).min(FOLDER_BYTES);
    for byte in &slot.folder[..folder_len] {
        line.push(&[byte.load(Ordering::Relaxed)]);
    }
    line.push(b"/");
    line.number(offset as u64 / segment_bytes);
    line.push(b".t2 at offset ");
    line.number(offset as u64 % segment_bytes);
    line.push(b" (SIGBUS); the process stops: check the drive, then `vmemkv engine verify`\n");
    // SAFETY: writes from a buffer of this frame. Nothing can be done about a failure.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// A line on the stack; what does not fit is left out.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(to) = self.bytes.get_mut(self.len) {
                *to = *byte;
                self.len += 1;
            }
        }
    }

    fn number(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_numbers_and_never_overflow() {
        let mut line = Line { bytes: [0; 512], len: 0 };
        for number in [0, 7, 10, u64::MAX] {
            line.number(number);
            line.push(b" ");
        }
        assert_eq!(&line.bytes[..line.len], b"0 7 10 18446744073709551615 ");
        line.push(&[b'x'; 1000]);
        assert_eq!(line.len, 512);
    }

    #[test]
    fn a_slot_is_free_again_after_its_range() {
        let used = || SLOTS.iter().any(|slot| slot.start.load(Ordering::Relaxed) == 0xdead_0000);
        let registration = register(0xdead_0000, 4096, 4096, Path::new("/x"));
        assert!(used());
        drop(registration);
        assert!(!used());
    }
}
