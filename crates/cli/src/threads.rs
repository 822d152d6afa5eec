//! The option `--threads`: the number of threads that a command uses.

use clap::Args;

/// How many threads to use.
#[derive(Args)]
pub struct Threads {
    /// Use N threads; results do not depend on it [default: all cores]
    #[arg(long, value_name = "N", help_heading = "Performance", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Threads {
    /// Runs `work` on a pool with this number of threads.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        // 0 stands for all cores.
        let count = self.threads.map_or(0, usize::from);
        rayon::ThreadPoolBuilder::new().num_threads(count).build()?.install(work)
    }
}
