//! `trueshot completions`: scripts with which shells complete commands and options.

use clap::Args;
use clap_complete::Shell;

use crate::output::OutputArgument;

/// Write a script with which a shell completes the commands and options of trueshot
#[derive(Args)]
#[command(after_help = "Examples:
  source <(trueshot completions bash)
  trueshot completions zsh -o ~/.zfunc/_trueshot
  trueshot completions fish -o ~/.config/fish/completions/trueshot.fish
  trueshot completions powershell >> $PROFILE")]
pub struct Arguments {
    /// Shell that the script is for
    #[arg(value_name = "SHELL")]
    shell: Shell,
    #[command(flatten)]
    output: OutputArgument,
}

/// Writes the script. `command` is the whole command line of trueshot, from which the script is generated.
pub fn run(arguments: &Arguments, mut command: clap::Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, name, &mut script);
    arguments.output.write_data(&String::from_utf8(script)?)
}
