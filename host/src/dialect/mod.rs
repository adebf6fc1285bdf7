//! Wire protocols, one folder each. A dialect turns requests into core rollouts and
//! outcomes into what its callers read; nothing below it knows which one spoke.

pub mod osmosis;
