//! The contract, as generated code.
//!
//! Several worlds are generated instead of one, so that a component exports what its
//! author named and nothing else: one with every import, shared by workflows and
//! graders, and one for each export. Imports that a component does not use are left
//! out of it when it is linked.
//!
//! Nothing here is for users. It is reachable because [`export!`](crate::export)
//! expands in their crates.

#![allow(missing_docs, unreachable_pub, clippy::all, reason = "generated, and named by a macro")]

/// Everything that a plugin may import.
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

/// The export of a workflow.
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

/// The export of an agent loop.
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

/// The export of a grader.
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

/// The export of tools for others.
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

/// The export of a plugin that declares its configuration.
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
