//! The program `trueshot`: passes its arguments to [`trueshot_cli::main_from`] and exits with the status it returns.

fn main() -> std::process::ExitCode {
    trueshot_cli::main_from(std::env::args_os()).into()
}
