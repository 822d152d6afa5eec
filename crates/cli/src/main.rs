//! The program `trueshot`: passes its arguments to the library.

fn main() -> std::process::ExitCode {
    trueshot_cli::main_from(std::env::args_os()).into()
}
