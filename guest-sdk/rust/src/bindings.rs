//! Generated bindings of the contract.
//!
//! There are several worlds instead of one, so that a component exports only what its author names: one world
//! with every import, for workflows and graders, and one for each export. The linker drops unused imports.
//!
//! This module is public only because [`export!`](crate::export) expands in the crates of users.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated, and named by a macro")]

/// World with every import of a plugin.
pub mod imports {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world imports {
                import rollout:plugin/types@0.1.0;
                import rollout:plugin/context@0.1.0;
                import rollout:plugin/samples@0.1.0;
                import rollout:plugin/calls@0.1.0;
                import rollout:plugin/models@0.1.0;
                import rollout:plugin/tools@0.1.0;
                import rollout:plugin/artifacts@0.1.0;
                import rollout:plugin/log@0.1.0;
                import rollout:plugin/observations@0.1.0;
            }
        ",
        world: "rollout:sdk/imports",
        generate_all,
    });
    pub use rollout::plugin::*;
}

/// World with the export of a workflow.
pub mod workflow {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world workflow-export { export rollout:plugin/workflow@0.1.0; }
        ",
        world: "rollout:sdk/workflow-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_workflow",
    });
    pub use exports::rollout::plugin::workflow::{Guest, Outcome};
}

/// World with the export of an agent loop.
pub mod agent_loop {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world agent-loop-export { export rollout:plugin/agent-loop@0.1.0; }
        ",
        world: "rollout:sdk/agent-loop-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_agent_loop",
    });
    pub use exports::rollout::plugin::agent_loop::{Guest, Outcome, Request, Status};
}

/// World with the export of a grader.
pub mod grader {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world grader-export { export rollout:plugin/grader@0.1.0; }
        ",
        world: "rollout:sdk/grader-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_grader",
    });
    pub use exports::rollout::plugin::grader::{GradedSample, Guest, Verdict};
}

/// World with the export of a group grader.
pub mod group_grader {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world group-grader-export { export rollout:plugin/group-grader@0.1.0; }
        ",
        world: "rollout:sdk/group-grader-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_group_grader",
    });
    pub use exports::rollout::plugin::group_grader::{
        FailedMember, Group, GroupedSample, Guest, Member, Rating,
    };
}

/// World with the export of an environment.
pub mod environment {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world environment-export { export rollout:plugin/environment@0.1.0; }
        ",
        world: "rollout:sdk/environment-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_environment",
    });
    pub use exports::rollout::plugin::environment::{
        Action, Description, Guest, Outcome, ResetRequest, Split, SplitKind, ToolAction,
    };
}

/// World with the export of tools.
pub mod tool {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world tool-export { export rollout:plugin/tool@0.1.0; }
        ",
        world: "rollout:sdk/tool-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_tool",
    });
    pub use exports::rollout::plugin::tool::Guest;
}

/// World with the export of a declaration of the configuration.
pub mod settings {
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package rollout:sdk;
            world settings-export { export rollout:plugin/settings@0.1.0; }
        ",
        world: "rollout:sdk/settings-export",
        with: { "rollout:plugin/types@0.1.0": super::imports::types },
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_settings",
    });
    pub use exports::rollout::plugin::settings::{Declaration, Guest};
}
