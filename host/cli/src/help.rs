//! Snapshots of the help texts, so that every change to them is reviewed.
//!
//! After a change, run `INSTA_UPDATE=always cargo test "${packages[@]}" --lib help::` and read the output of
//! `git diff`.

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
fn help_texts_match_their_snapshots() {
    let mut all = vec![program()];
    all.extend(commands());
    for mut command in all {
        let name = command.get_name().to_owned();
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        insta::assert_snapshot!(format!("{name}-h"), short);
        insta::assert_snapshot!(format!("{name}--help"), long);
        for mut subcommand in command.get_subcommands().filter(|each| each.get_name() != "help").cloned() {
            if name != "rollout-host" {
                let long = subcommand.render_long_help().to_string();
                insta::assert_snapshot!(format!("{name}-{}--help", subcommand.get_name()), long);
            }
        }
    }
}

/// clap's suggestions for mistyped names would reveal hidden commands and options.
#[test]
fn no_command_or_option_is_hidden() {
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

/// Short help fits on a screen; only the long help lists limits of rollouts and other details.
#[test]
fn a_short_help_is_short() {
    const LINES_MAX: usize = 70;
    for mut command in commands() {
        let lines = command.render_help().to_string().lines().count();
        assert!(lines <= LINES_MAX, "{}: {lines} lines", command.get_name());
    }
}
