//! Components that no toolchain produces.

/// Returns the text of a component around a core module with `memory`, `realloc`, `run` and `post`. The module's memory
/// has one answer, at 16: an assistant message with this content.
pub fn component_text(module: &str, content: &str) -> String {
    let answer = format!(r#"{{"role":"assistant","content":"{content}"}}"#);
    let escaped = answer.replace('"', "\\\"");
    let length = answer.len();
    let failure = r#"(variant (case "failed" string) (case "invalid" string) (case "timed-out" string))"#;
    let metric = r#"(record (field "name" string) (field "value" f64))"#;
    let outcome = |metric: &str| {
        format!(r#"(record (field "messages" (option (list string))) (field "metrics" (list {metric})))"#)
    };
    let [outcome, taken_outcome, given_outcome] = ["$metric", "$taken-metric", "$given-metric"].map(outcome);
    let run = r#"(func (param "prompt" (list string)) (result (result"#;
    format!(
        r#"(component
            (import "wasi:random/random@0.2.0" (instance $random
                (export "get-random-u64" (func (result u64)))))
            (import "wasi:cli/exit@0.2.0" (instance $exit
                (export "exit" (func (param "status" (result))))))
            (core func $random (canon lower (func $random "get-random-u64")))
            (core func $exit (canon lower (func $exit "exit")))
            (core module $module {module}
                (data (i32.const 16) "\00\00\00\00\01\00\00\00\40\00\00\00\01\00\00\00")
                (data (i32.const 64) "\00\01\00\00\{length:02x}\00\00\00")
                (data (i32.const 256) "{escaped}"))
            (core instance $host
                (export "random" (func $random)) (export "exit" (func $exit)))
            (core instance $guest (instantiate $module (with "host" (instance $host))))
            (type $failure {failure})
            (type $metric {metric})
            (type $outcome {outcome})
            (type $run {run} $outcome (error $failure)))))
            (alias core export $guest "memory" (core memory $memory))
            (alias core export $guest "realloc" (core func $realloc))
            (alias core export $guest "run" (core func $core-run))
            (alias core export $guest "post" (core func $post))
            (func $lifted (type $run) (canon lift (core func $core-run)
                (memory $memory) (realloc $realloc) (post-return $post)))
            (component $named
                (type $failure {failure})
                (import "failure" (type $taken-failure (eq $failure)))
                (type $metric {metric})
                (import "metric" (type $taken-metric (eq $metric)))
                (type $outcome {taken_outcome})
                (import "outcome" (type $taken-outcome (eq $outcome)))
                (type $taken {run} $taken-outcome (error $taken-failure)))))
                (import "run" (func $run (type $taken)))
                (export $given-failure "failure" (type $failure))
                (export $given-metric "metric" (type $metric))
                (type $outcome-again {given_outcome})
                (export $given-outcome "outcome" (type $outcome-again))
                (type $given {run} $given-outcome (error $given-failure)))))
                (export "run" (func $run) (func (type $given))))
            (instance $workflow (instantiate $named
                (with "failure" (type $failure)) (with "metric" (type $metric))
                (with "outcome" (type $outcome)) (with "run" (func $lifted))))
            (export "rollout:plugin/workflow@0.1.0" (instance $workflow)))"#
    )
}
