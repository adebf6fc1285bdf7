//! What `--help` says, kept in files: a change of it is a change that somebody reviews.
//!
//! After a change: `INSTA_UPDATE=always cargo test "${packages[@]}" --lib help::`, and read
//! what `git diff` shows.

use clap::{Command, CommandFactory};

use super::Arguments;

fn program() -> Command {
    let mut program = Arguments::command();
    program.build();
    program
}

fn commands() -> Vec<Command> {
    program().get_subcommands().filter(|command| command.get_name() != "help").cloned().collect()
}

#[test]
fn help_is_as_it_was_reviewed() {
    let mut all = vec![program()];
    all.extend(commands());
    for mut command in all {
        let name = command.get_name().to_owned();
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        insta::assert_snapshot!(format!("{name}-h"), short);
        insta::assert_snapshot!(format!("{name}--help"), long);
        for mut below in command.get_subcommands().filter(|below| below.get_name() != "help").cloned() {
            if name != "rollout-host" {
                let long = below.render_long_help().to_string();
                insta::assert_snapshot!(format!("{name}-{}--help", below.get_name()), long);
            }
        }
    }
}

/// A tip would name what is hidden: clap looks for the nearest name among all of them.
#[test]
fn nothing_is_hidden_that_a_tip_could_name() {
    for command in commands().into_iter().chain([program()]) {
        assert!(!command.is_hide_set(), "{}", command.get_name());
        for option in command.get_arguments() {
            assert!(!option.is_hide_set(), "{} {}", command.get_name(), option.get_id());
        }
    }
}

#[test]
fn every_command_has_an_example() {
    for command in commands() {
        let name = command.get_name().to_owned();
        let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(after.contains(&format!("rollout-host {name}")), "{name}: {after}");
    }
}

/// A short help fits a screen; the limits of a rollout and the like are in the long one.
#[test]
fn a_short_help_is_short() {
    const LINES_MAX: usize = 70;
    for mut command in commands() {
        let lines = command.render_help().to_string().lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines", command.get_name());
    }
}
