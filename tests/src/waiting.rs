//! A component that starts slowly.

use crate::component_text;

/// Returns a component whose start function sleeps for this many seconds, without using CPU time. Its workflow answers
/// `#### 5`.
pub fn waiting_component(seconds: u32) -> Vec<u8> {
    let module = format!(
        r#"
        (import "host" "wait-for" (func $wait-for (param i64) (result i32)))
        (import "host" "block" (func $block (param i32)))
        (memory (export "memory") 1)
        (func $start (call $block (call $wait-for (i64.const {seconds}000000000))))
        (start $start)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096))
        (func (export "run") (param i32 i32) (result i32) (i32.const 16))
        (func (export "post") (param i32))
        "#
    );
    let imports = r#"(component
        (import "wasi:io/poll@0.2.0" (instance $poll
            (export "pollable" (type $pollable (sub resource)))
            (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
        (alias export $poll "pollable" (type $pollable))
        (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
            (alias outer 1 $pollable (type $pollable))
            (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
        (core func $wait-for (canon lower (func $clock "subscribe-duration")))
        (core func $block (canon lower (func $poll "[method]pollable.block")))"#;
    let exports = r#"(export "wait-for" (func $wait-for)) (export "block" (func $block)) (export "random""#;
    let text = component_text(&module, "I say #### 5");
    let text = text.replacen("(component", imports, 1).replacen(r#"(export "random""#, exports, 1);
    wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"))
}
