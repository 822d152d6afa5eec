//! The thread pools that the library computes on, with the GIL released. Start with [`run_on_matrix`] for work on rows,
//! and with [`run_on_pool`] for short work on files.
//!
//! Calls share one pool per process and number of threads ([`shared_pool`]), which is kept for later calls. It must not
//! be shared with a forked process, which inherits the pool but not its threads, and would wait for them forever.
//!
//! Work that waits for Python code, such as a user-defined method, runs on a pool of its own ([`own_pool`]). The Python
//! code may call trueshot, and that call would wait forever for a shared pool whose threads all wait for the code.
//!
//! A panic ends the call with an exception, not the interpreter.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use trueshot::guard::caught;
use trueshot::progress::Progress;

use crate::exceptions::{internal_error, to_exception, value_error};
use crate::interruptible::run_interruptible;

/// The maximum number of threads that can be requested.
const MAX_THREADS: i64 = 1024;

/// The process ID and the number of threads; 0 threads stand for `RAYON_NUM_THREADS`, or all cores.
type PoolKey = (u32, usize);

/// The shared pool of this process with this number of threads; `None` for `RAYON_NUM_THREADS`, or all cores. Work on
/// it must not wait for Python code.
pub fn shared_pool(threads: Option<i64>) -> PyResult<Arc<ThreadPool>> {
    let threads = check_threads(threads)?;
    static POOLS: Mutex<Option<HashMap<PoolKey, Arc<ThreadPool>>>> = Mutex::new(None);
    let key = (std::process::id(), threads);
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pools = pools.get_or_insert_default();
    if let Some(pool) = pools.get(&key) {
        return Ok(pool.clone());
    }
    // Pools of the parent, if this process was forked: dropping them would wait for threads that do not exist.
    let foreign: Vec<PoolKey> = pools.keys().copied().filter(|(process, _)| *process != key.0).collect();
    foreign.iter().for_each(|key| std::mem::forget(pools.remove(key)));
    let pool = Arc::new(new_pool(threads)?);
    pools.insert(key, pool.clone());
    Ok(pool)
}

/// A pool with this number of threads for one call; `None` for `RAYON_NUM_THREADS`, or all cores. Work on it may wait
/// for Python code. The threads end when the pool is dropped.
pub fn own_pool(threads: Option<i64>) -> PyResult<ThreadPool> {
    new_pool(check_threads(threads)?)
}

/// Starts a pool; 0 threads stand for `RAYON_NUM_THREADS`, or all cores.
fn new_pool(threads: usize) -> PyResult<ThreadPool> {
    let built =
        ThreadPoolBuilder::new().num_threads(threads).thread_name(|n| format!("trueshot-{n}")).build();
    built.map_err(|error| value_error(format!("cannot start {threads} threads: {error}")))
}

/// Runs work on the shared pool with this number of threads. Ctrl-C takes effect only when the work has finished.
pub fn run_on_pool<T: Send>(
    py: Python<'_>,
    threads: Option<i64>,
    work: impl FnOnce() -> trueshot::Result<T> + Send,
) -> PyResult<T> {
    let pool = shared_pool(threads)?;
    // Caught on the thread of the pool, so that nothing is printed.
    let done = py.detach(|| pool.install(|| caught(work)));
    done.ok_or_else(internal_error)?.map_err(to_exception)
}

/// Matrices of up to this number of values (80 rows of 1600, for example) are processed on the calling thread: waking
/// other threads would take longer, especially on a busy machine.
const SMALL_MATRIX: usize = 1 << 17;

/// The maximum number of rows of such a matrix, because the time of an audit grows with the square of the rows.
const MAX_SMALL_ROWS: usize = 1000;

/// Runs work on a matrix. A small one is processed on the calling thread, usually in a few milliseconds, unless the
/// number of threads is given. A large one runs on other threads while the calling thread checks for Ctrl-C, which
/// stops the work through its `Progress`.
pub fn run_on_matrix<T: Send>(
    py: Python<'_>,
    threads: Option<i64>,
    (rows, dim): (usize, usize),
    work: impl FnOnce(&dyn Progress) -> trueshot::Result<T> + Send,
) -> PyResult<T> {
    if rows > MAX_SMALL_ROWS || rows.saturating_mul(dim) > SMALL_MATRIX {
        let pool = shared_pool(threads)?;
        return run_interruptible(py, &pool, |channel| work(channel), |()| Ok(()));
    }
    if threads.is_some() {
        return run_on_pool(py, threads, || work(&()));
    }
    let caller_pool = CALLER_POOL.with(|pool| pool.get_or_init(new_caller_pool).clone());
    let Some(pool) = caller_pool else { return run_on_pool(py, Some(1), || work(&())) };
    let done = py.detach(|| pool.install(|| caught(|| work(&()))));
    done.ok_or_else(internal_error)?.map_err(to_exception)
}

/// The largest number of calling threads with a single-thread pool of their own, because such a pool is never freed.
/// Later threads use the shared pool with one thread.
const MAX_CALLER_POOLS: usize = 64;

thread_local! {
    /// The pool that consists of this thread; `None` if the thread belongs to another pool or there are too many.
    static CALLER_POOL: OnceCell<Option<Arc<ThreadPool>>> = const { OnceCell::new() };
}

/// A pool that consists of the calling thread alone, so that work for a rayon pool runs there without waking another
/// thread.
fn new_caller_pool() -> Option<Arc<ThreadPool>> {
    static CALLER_POOLS: AtomicUsize = AtomicUsize::new(0);
    if CALLER_POOLS.fetch_add(1, Ordering::Relaxed) >= MAX_CALLER_POOLS {
        return None;
    }
    ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().ok().map(Arc::new)
}

/// The number of threads for a pool; 0 stands for `RAYON_NUM_THREADS`, or all cores.
fn check_threads(threads: Option<i64>) -> PyResult<usize> {
    match threads {
        None => Ok(0),
        Some(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(threads as usize),
        Some(threads) => Err(value_error(format!("threads is {threads}; allowed: 1 to {MAX_THREADS}"))),
    }
}
