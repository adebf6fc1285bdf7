//! The tree of forks that a rollout belongs to.

use std::collections::HashMap;

use rollout_core::moments::Moments;
use rollout_rollout::{ForkMember, ForkState, Outcome};
use rollout_wire::id::RolloutId;

use crate::format::{phase_word, reward};
use crate::links::Links;
use crate::text::visible;

/// A rollout in the tree.
#[derive(Clone, Debug)]
pub(crate) struct FamilyLine {
    /// The lines of the tree before it.
    pub branch: String,
    /// Its level, from 1.
    pub level: usize,
    /// Its id.
    pub id: String,
    /// The address of its page.
    pub link: String,
    /// Whether the page is its own.
    pub is_shown: bool,
    /// The turn of its parent after which it continues.
    pub turn: Option<u32>,
    /// Its reward.
    pub reward: Option<String>,
    /// Its phase, or the kind of its failure, or that it is not known.
    pub state: Option<&'static str>,
    /// The class of the state for the style sheet.
    pub style: &'static str,
    /// The mean of the rewards of its forks, if several have one.
    pub mean: Option<String>,
}

/// Returns the lines of a tree, in which each rollout is before its forks.
pub(crate) fn family_lines(links: &Links, id: &RolloutId, members: &[ForkMember]) -> Vec<FamilyLine> {
    let means = means(members);
    let mut open = Vec::new();
    let line = |(at, member): (usize, &ForkMember)| {
        let depth = member.depth;
        let is_last = members[at + 1..]
            .iter()
            .find(|later| later.depth <= depth)
            .is_none_or(|later| later.depth < depth);
        open.truncate(depth);
        open.resize(depth, false);
        let mut branch = String::new();
        if depth > 0 {
            open[1..].iter().for_each(|continues| branch.push_str(if *continues { "│  " } else { "   " }));
            branch.push_str(if is_last { "└─ " } else { "├─ " });
        }
        open.push(!is_last);
        let (value, state, style) = match &member.state {
            ForkState::Live(phase) => (None, Some(phase_word(*phase)), phase_word(*phase)),
            ForkState::Ended(Outcome::Scored { reward: value }) => (Some(reward(*value)), None, ""),
            ForkState::Ended(Outcome::Unscored(failure)) => (None, Some(failure.kind.as_str()), "bad"),
            ForkState::Unknown => (None, Some("not listed"), ""),
        };
        FamilyLine {
            branch,
            level: depth + 1,
            id: visible(member.id.as_str()),
            link: links.rollout(&member.id),
            is_shown: member.id == *id,
            turn: member.turn,
            reward: value,
            state,
            style,
            mean: means.get(&at).cloned(),
        }
    };
    members.iter().enumerate().map(line).collect()
}

/// Returns the mean rewards of the forks of each member that has several with a reward, by the member's index.
fn means(members: &[ForkMember]) -> HashMap<usize, String> {
    let (mut parents, mut rewards) = (Vec::new(), HashMap::<usize, Moments>::new());
    for (at, member) in members.iter().enumerate() {
        parents.truncate(member.depth);
        if let (Some(parent), ForkState::Ended(Outcome::Scored { reward })) = (parents.last(), &member.state)
        {
            rewards.entry(*parent).or_default().add(*reward);
        }
        parents.push(at);
    }
    let mean =
        |(at, moments): (usize, Moments)| Some((at, reward(moments.standard_error().and(moments.mean())?)));
    rewards.into_iter().filter_map(mean).collect()
}

#[cfg(test)]
mod tests {
    use rollout_rollout::Phase;

    use super::*;

    #[test]
    fn a_tree_has_branches_and_means() {
        let member = |id: &str, depth, reward: Option<f64>| ForkMember {
            id: RolloutId::parse(id).unwrap(),
            depth,
            turn: (depth > 0).then_some(2),
            state: match reward {
                Some(reward) => ForkState::Ended(Outcome::Scored { reward }),
                None => ForkState::Live(Phase::Running),
            },
        };
        let members = [
            member("a", 0, Some(0.0)),
            member("b", 1, Some(1.0)),
            member("c", 2, None),
            member("d", 2, Some(0.25)),
            member("e", 1, Some(0.5)),
        ];
        let links = Links { root: "/ui", tenant: None };
        let lines = family_lines(&links, &RolloutId::parse("d").unwrap(), &members);
        let shown: Vec<_> = lines.iter().map(|line| format!("{}{}", line.branch, line.id)).collect();
        assert_eq!(shown, ["a", "├─ b", "│  ├─ c", "│  └─ d", "└─ e"]);
        let means: Vec<_> = lines.iter().map(|line| line.mean.as_deref()).collect();
        assert_eq!(means, [Some("0.75"), None, None, None, None]);
        assert_eq!((lines[2].state, lines[3].is_shown, lines[3].level), (Some("running"), true, 3));
        assert_eq!(lines[3].link, "/ui/rollouts/d");
    }
}
