//! Pages for people: a host, a rollout, an evaluation.
//!
//! Every page is made on the server from a [`Conversation`] or from figures, as HTML with one style sheet and one small
//! script, all of which are in the program. A browser needs no network for them.
//!
//! Everything that a guest, a model or a caller wrote is text. Templates escape it, [`Text`] limits its size, and
//! characters that would change the direction of surrounding text are shown as escapes. The
//! [`SECURITY_POLICY`] forbids scripts and styles other than the program's own files.
//!
//! This crate opens no connection and knows no protocol.

mod artifact;
mod assets;
mod cluster;
mod command;
mod conversation;
mod data;
mod evaluation;
mod family;
mod format;
mod history;
mod host;
mod links;
mod logprob;
mod message;
mod notice;
mod plot;
mod plugin;
mod rollout;
mod text;
mod timeline;

pub use artifact::{ARTIFACT_POLICY, SentArtifact};
pub use assets::{ASSETS, Asset, SECURITY_POLICY};
pub use cluster::{ClusterPage, WorkerLine, merged};
pub use conversation::{Conversation, PageOfTurns, TURNS_PER_PAGE};
pub use data::{
    CallData, CountsData, EndedData, FailureData, FailuresData, HostData, ListData, LiveData, MessageData,
    RolloutData, TextData, TurnData,
};
pub use evaluation::{
    ComparisonPage, EvaluationFigures, EvaluationPage, PassAtK, ROWS_PER_PAGE, RowLine, RowQuery, Side,
    SideBySidePage, SortBy,
};
pub use format::{bytes, duration, number, phase_word, reward};
pub use history::{LoadRates, LoadSample};
pub use host::{
    ENDED_PER_PAGE, EndedFilter, Gauge, HostPage, HostSource, LIVE_PER_PAGE, PluginLine, TenantLine,
};
pub use links::{Frame, Links, path_segment};
pub use notice::{NoticePage, SignInPage};
pub use plugin::{DeploymentSource, PluginPage, PluginSource};
pub use rollout::{LOG_LINES_PER_PAGE, RolloutPage, RolloutSource, whole_text};
pub use text::{Text, visible};

pub use askama::Template;
