//! What the allocator keeps of memory that was freed. Nothing here does anything with another
//! allocator than glibc's: those give memory back on their own.
//!
//! Invariant: the library never changes how its process allocates; a program asks for that.

/// The allocator gives whole free pages back, wherever they lie; but of those at the end of a
/// thread's heap, as many as its threshold says stay.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: may be called at any time, by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps what the allocator holds of freed memory within a few MiB for each heap, for the whole
/// process. For programs to call when they start: an index is built in pieces of many sizes by several
/// threads, and each of their heaps would come to keep up to 64 MiB that nothing needs, for the
/// allocator goes by the largest piece that it has ever been given back.
///
/// Does nothing when the environment says how to allocate (`GLIBC_TUNABLES`, `MALLOC_..._`).
pub fn keep_heap_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// Larger pieces are mappings of their own, which go when they are freed.
        const MAPPED_FROM: libc::c_int = 4 << 20;
        /// What may stay free at the end of a heap. Enough for the messages and values of a request,
        /// so that they need not be got from the system each time.
        const KEPT: libc::c_int = 4 << 20;
        let names = ["GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"];
        if names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
            return;
        }
        // SAFETY: both set a number under the allocator's own lock. A refusal costs memory only.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}
