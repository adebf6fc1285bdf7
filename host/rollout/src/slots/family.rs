//! Trees of forks: a rollout, its ancestors, and all their descendants.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::TenantSlots;
use crate::activity::EndedRollout;
use crate::model::{ForkPoint, Outcome, Phase};
use rollout_wire::id::RolloutId;

/// Maximum number of rollouts of a tree.
const MEMBERS_MAX: usize = 200;

/// Maximum depth of a tree.
const DEPTH_MAX: usize = 50;

/// The state of a rollout in a tree of forks.
#[derive(Clone, Debug, PartialEq)]
pub enum ForkState {
    /// It is alive.
    Live(Phase),
    /// It has ended.
    Ended(Outcome),
    /// It is not in the list of finished rollouts.
    Unknown,
}

/// A rollout in a tree of forks.
#[derive(Clone, Debug, PartialEq)]
pub struct ForkMember {
    /// Its id.
    pub id: RolloutId,
    /// Number of forks between it and the root.
    pub depth: usize,
    /// The turn of its parent after which it continues; `None` for the root.
    pub turn: Option<u32>,
    /// Its state.
    pub state: ForkState,
}

/// The forks of a tenant.
#[derive(Default)]
struct Forks {
    points: HashMap<RolloutId, ForkPoint>,
    states: HashMap<RolloutId, ForkState>,
}

impl Forks {
    fn add(&mut self, id: RolloutId, point: ForkPoint, state: ForkState) {
        self.points.insert(id.clone(), point);
        self.states.insert(id, state);
    }

    /// Returns the oldest known ancestor of a rollout.
    fn root(&self, id: &RolloutId) -> RolloutId {
        let (mut root, mut seen) = (id, HashSet::new());
        while let Some(point) = self.points.get(root)
            && seen.insert(root)
            && seen.len() <= DEPTH_MAX
        {
            root = &point.rollout_id;
        }
        root.clone()
    }

    /// Returns the tree of a root, each rollout before its forks, which are in the order of their turns.
    fn tree(&self, root: RolloutId) -> Vec<ForkMember> {
        let mut children: BTreeMap<&RolloutId, Vec<(u32, &RolloutId)>> = BTreeMap::new();
        for (id, point) in &self.points {
            children.entry(&point.rollout_id).or_default().push((point.turn, id));
        }
        let (mut members, mut seen) = (Vec::new(), HashSet::new());
        let mut next = vec![(root, None, 0)];
        while let Some((id, turn, depth)) = next.pop()
            && members.len() < MEMBERS_MAX
        {
            if let Some(forks) =
                children.get_mut(&id).filter(|_| depth < DEPTH_MAX && seen.insert(id.clone()))
            {
                forks.sort_unstable();
                next.extend(forks.iter().rev().map(|(turn, id)| ((*id).clone(), Some(*turn), depth + 1)));
            }
            let state = self.states.get(&id).cloned().unwrap_or(ForkState::Unknown);
            members.push(ForkMember { id, depth, turn, state });
        }
        members
    }
}

impl TenantSlots {
    /// Returns the tree of forks that a rollout belongs to, each rollout before its forks. The tree is empty if the rollout
    /// is not a fork and has no forks.
    ///
    /// `point` is the point at which the rollout itself was forked. Other rollouts are known while they are alive, and as long
    /// as they are in the list of finished ones.
    pub fn family(&self, id: &RolloutId, point: Option<&ForkPoint>) -> Vec<ForkMember> {
        let mut forks = Forks::default();
        self.activity().for_each_ended(|rollout: &EndedRollout| {
            if let Some(point) = &rollout.fork {
                forks.add(rollout.id.clone(), point.clone(), ForkState::Ended(rollout.outcome.clone()));
            }
        });
        for (id, live) in self.0.live().iter() {
            if let Some(point) = live.handle.facts().and_then(|facts| facts.fork.clone()) {
                forks.add(id.clone(), point, ForkState::Live(live.handle.phase()));
            }
        }
        if let Some(point) = point {
            forks.points.insert(id.clone(), point.clone());
        }
        if forks.points.is_empty() {
            return Vec::new();
        }
        let mut members = forks.tree(forks.root(id));
        if members.len() < 2 {
            return Vec::new();
        }
        self.complete(&mut members);
        members
    }

    /// Adds the states of rollouts that are not forks.
    fn complete(&self, members: &mut [ForkMember]) {
        let mut unknown: HashMap<RolloutId, &mut ForkState> = members
            .iter_mut()
            .filter(|member| member.state == ForkState::Unknown)
            .map(|member| (member.id.clone(), &mut member.state))
            .collect();
        if unknown.is_empty() {
            return;
        }
        self.activity().for_each_ended(|rollout| {
            if let Some(state) = unknown.get_mut(&rollout.id) {
                **state = ForkState::Ended(rollout.outcome.clone());
            }
        });
        for (id, state) in unknown {
            if let Some(handle) = self.find(&id) {
                *state = ForkState::Live(handle.phase());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RolloutId {
        RolloutId::parse(text).unwrap()
    }

    fn forks(all: &[(&str, &str, u32)]) -> Forks {
        let mut forks = Forks::default();
        for (fork, of, turn) in all {
            let point = ForkPoint { rollout_id: id(of), turn: *turn };
            forks.add(id(fork), point, ForkState::Ended(Outcome::Scored { reward: f64::from(*turn) }));
        }
        forks
    }

    fn shape(members: &[ForkMember]) -> Vec<(&str, usize, Option<u32>)> {
        members.iter().map(|member| (member.id.as_str(), member.depth, member.turn)).collect()
    }

    #[test]
    fn a_tree_has_each_rollout_before_its_forks_in_the_order_of_turns() {
        let forks = forks(&[("b", "a", 2), ("c", "a", 1), ("d", "b", 3), ("other", "x", 1)]);
        assert_eq!(forks.root(&id("d")), id("a"));
        let tree = forks.tree(id("a"));
        let expected = [("a", 0, None), ("c", 1, Some(1)), ("b", 1, Some(2)), ("d", 2, Some(3))];
        assert_eq!(shape(&tree), expected);
        assert_eq!(tree[0].state, ForkState::Unknown);
        assert_eq!(tree[3].state, ForkState::Ended(Outcome::Scored { reward: 3.0 }));
    }

    #[test]
    fn ids_that_were_used_again_end_the_search() {
        // A rollout can be forked under the id of its own ancestor.
        let forks = forks(&[("a", "b", 1), ("b", "a", 1)]);
        let root = forks.root(&id("a"));
        assert!(forks.tree(root).len() <= 4);
    }

    #[test]
    fn a_tree_has_a_size() {
        let names: Vec<String> = (0..1000).map(|number| format!("f{number}")).collect();
        let all: Vec<(&str, &str, u32)> = names.iter().map(|name| (&**name, "root", 1)).collect();
        assert_eq!(forks(&all).tree(id("root")).len(), MEMBERS_MAX);
        let chain: Vec<(&str, &str, u32)> = names.windows(2).map(|pair| (&*pair[1], &*pair[0], 1)).collect();
        assert!(forks(&chain).tree(id("f0")).len() <= DEPTH_MAX + 1);
    }
}
