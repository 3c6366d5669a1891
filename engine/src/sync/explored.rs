//! The primitives under the explorer (`--cfg shuttle`): before each of their operations another
//! thread may be chosen. All threads are then coroutines of one thread of the system.
//!
//! Invariants: an operation itself is one step; memory is sequentially consistent, so what is
//! looked for is a wrong order of steps, not a wrong memory ordering; atomics have the layout of
//! the real ones (some lie in mapped files and zeroed memory); outside of an execution nothing
//! switches.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Threads of the explorer.
pub(crate) mod thread {
    pub(crate) use shuttle::thread::*;

    /// The explorer runs one thread at a time: more than two find nothing new.
    pub(crate) fn available_parallelism() -> std::io::Result<std::num::NonZeroUsize> {
        Ok(std::num::NonZeroUsize::MIN.saturating_add(1))
    }
}

/// Another thread may go on here.
pub(crate) fn point() {
    if super::explore::is_running() {
        // A switch and nothing else.
        thread::sleep(Duration::ZERO);
    }
}

/// In a loop that waits for another thread: that one must get its turn.
pub(crate) fn spin_loop() {
    if super::explore::is_running() {
        thread::yield_now();
    }
}

/// Counts nothing, waits for others.
pub(crate) struct Backoff;

impl Backoff {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn snooze(&self) {
        spin_loop();
    }
}

/// A lock with the face of `parking_lot`'s.
#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Its guard; empty only while it waits for a [`Condvar`].
pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)))
    }

    #[allow(dead_code, reason = "part of the face")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.try_lock().is_none()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().expect("the guard is there outside of a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("the guard is there outside of a wait")
    }
}

/// A condition variable with the face of `parking_lot`'s. Time does not pass under the explorer:
/// a wait with a limit ends at once.
#[derive(Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

/// Whether a wait ended by its limit.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("the guard is there outside of a wait");
        let held = self.0.wait(held).unwrap_or_else(std::sync::PoisonError::into_inner);
        guard.0 = Some(held);
    }

    pub(crate) fn wait_until<T>(
        &self,
        _guard: &mut MutexGuard<'_, T>,
        _until: Instant,
    ) -> TimedOut {
        point();
        TimedOut(true)
    }

    #[allow(dead_code, reason = "part of the face")]
    pub(crate) fn wait_for<T>(&self, _guard: &mut MutexGuard<'_, T>, _time: Duration) -> TimedOut {
        point();
        TimedOut(true)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A pointer that is swapped as a whole.
pub(crate) struct ArcSwap<T>(arc_swap::ArcSwap<T>);

impl<T> ArcSwap<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    pub(crate) fn from_pointee(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<T>> {
        point();
        self.0.load()
    }

    pub(crate) fn load_full(&self) -> Arc<T> {
        point();
        self.0.load_full()
    }

    pub(crate) fn store(&self, value: Arc<T>) {
        point();
        self.0.store(value);
    }

    pub(crate) fn compare_and_swap(
        &self,
        current: &Arc<T>,
        new: Arc<T>,
    ) -> arc_swap::Guard<Arc<T>> {
        point();
        self.0.compare_and_swap(current, new)
    }
}

/// Atomics that let others go first.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::point;

    /// Orders nothing here: every step is in the one order already.
    pub(crate) fn fence(_: Ordering) {}

    macro_rules! explored {
        ($name:ident, $value:ty $(, $generic:ident)?) => {
            /// The real one, with a point before each operation.
            #[derive(Debug)]
            #[repr(transparent)]
            pub(crate) struct $name$(<$generic>)?(std::sync::atomic::$name$(<$generic>)?);

            #[allow(dead_code, reason = "the same face for all")]
            impl$(<$generic>)? $name$(<$generic>)? {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.swap(value, order)
                }
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }
                pub(crate) fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(current, new, success, failure)
                }
                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    change: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    point();
                    self.0.fetch_update(set, fetch, change)
                }
                pub(crate) fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }
            }

            impl$(<$generic>)? Default for $name$(<$generic>)? {
                fn default() -> Self {
                    Self(std::sync::atomic::$name::default())
                }
            }

            impl$(<$generic>)? From<$value> for $name$(<$generic>)? {
                fn from(value: $value) -> Self {
                    Self::new(value)
                }
            }
        };
    }

    macro_rules! explored_number {
        ($name:ident, $value:ty) => {
            explored!($name, $value);

            #[allow(dead_code, reason = "the same face for all")]
            impl $name {
                pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_add(value, order)
                }
                pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_sub(value, order)
                }
                pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_or(value, order)
                }
                pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_and(value, order)
                }
                pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_max(value, order)
                }
                pub(crate) fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.fetch_min(value, order)
                }
            }
        };
    }

    explored!(AtomicBool, bool);
    impl AtomicBool {
        pub(crate) fn fetch_or(&self, value: bool, order: Ordering) -> bool {
            point();
            self.0.fetch_or(value, order)
        }
    }

    explored!(AtomicPtr, *mut T, T);
    explored_number!(AtomicU8, u8);
    explored_number!(AtomicU16, u16);
    explored_number!(AtomicU32, u32);
    explored_number!(AtomicU64, u64);
    explored_number!(AtomicI64, i64);
    explored_number!(AtomicUsize, usize);
}
