//! Tests of the structure of merged components and of the reasons for rejection. `host/guest/tests/fused.rs`
//! runs merged components in an engine.

use rollout_fuse::{Change, FuseError, fuse};
use wasmparser::{ElementItems, ElementKind, Operator, Parser, Payload, TypeRef};

const LIBRARIES: &str = include_str!("libraries.wat");

fn fused(text: &str) -> Vec<u8> {
    fuse(&wat::parse_str(text).unwrap()).unwrap().bytes
}

/// Returns the payloads of a component's modules.
fn modules(component: &[u8]) -> Vec<Vec<Payload<'_>>> {
    let mut modules: Vec<Vec<Payload<'_>>> = Vec::new();
    let mut inside = false;
    for payload in Parser::new(0).parse_all(component) {
        match payload.unwrap() {
            Payload::ModuleSection { .. } => {
                modules.push(Vec::new());
                inside = true;
            }
            Payload::End(_) => inside = false,
            payload if inside => modules.last_mut().unwrap().push(payload),
            _ => {}
        }
    }
    modules
}

#[test]
fn libraries_become_one_module_that_owns_memory_and_tables() {
    let fused = fuse(&wat::parse_str(LIBRARIES).unwrap()).unwrap();

    assert_eq!(fused.modules, 5);
    // Unreachable functions are removed: trampolines to libraries, and functions for the linker.
    assert_eq!(fused.functions, Change { before: 15, after: 10 });
    assert_eq!(fused.imports, Change { before: 21, after: 1 });
    let modules = modules(&fused.bytes);
    assert_eq!(modules.len(), 2, "the merged module, and the one for the converted imports");
    let one = modules.iter().find(|module| has_memory(module)).unwrap();
    for payload in one {
        match payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    assert!(matches!(import.unwrap().ty, TypeRef::Func(_)));
                }
            }
            Payload::TableSection(tables) => assert_eq!(tables.count(), 2),
            // Only the stack pointer remains. The other globals were open addresses and are constant now.
            Payload::GlobalSection(globals) => assert_eq!(globals.count(), 1),
            _ => {}
        }
    }
}

fn has_memory(module: &[Payload<'_>]) -> bool {
    module.iter().any(|payload| matches!(payload, Payload::MemorySection(_)))
}

#[test]
fn tables_are_filled_from_lists_of_functions_at_constant_offsets() {
    let fused = fused(LIBRARIES);
    let mut places = Vec::new();
    for payload in modules(&fused).into_iter().find(|module| has_memory(module)).unwrap() {
        let Payload::ElementSection(segments) = payload else { continue };
        for segment in segments {
            let segment = segment.unwrap();
            let ElementKind::Active { offset_expr, .. } = segment.kind else { panic!("not active") };
            let Operator::I32Const { value } = offset_expr.get_operators_reader().read().unwrap() else {
                panic!("not constant")
            };
            let ElementItems::Functions(functions) = segment.items else { panic!("no list of functions") };
            places.push((value, functions.count()));
        }
    }
    assert_eq!(places, [(3, 2), (5, 2), (1, 2)]);
}

#[test]
fn calls_between_libraries_are_direct() {
    let fused = fused(LIBRARIES);
    let mut indirect = 0;
    for payload in modules(&fused).into_iter().find(|module| has_memory(module)).unwrap() {
        let Payload::CodeSectionEntry(body) = payload else { continue };
        let operators = body.get_operators_reader().unwrap();
        indirect += operators
            .into_iter()
            .filter(|operator| matches!(operator, Ok(Operator::CallIndirect { .. })))
            .count();
    }
    // Two of them are in the library itself, and one goes through the shim.
    assert_eq!(indirect, 3);
}

#[test]
fn functions_keep_their_names() {
    let fused = fused(LIBRARIES);
    let mut names = Vec::new();
    for payload in modules(&fused).into_iter().flatten() {
        let Payload::CustomSection(section) = payload else { continue };
        let wasmparser::KnownCustom::Name(sections) = section.as_known() else { continue };
        for section in sections {
            let wasmparser::Name::Function(functions) = section.unwrap() else { continue };
            names.extend(functions.into_iter().map(|function| function.unwrap().name.to_owned()));
        }
    }
    for name in ["triple", "square", "trap"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name == "nobody_calls_this"));
}

#[test]
fn the_same_component_gives_the_same_bytes() {
    let first = fused(LIBRARIES);
    for _ in 0..5 {
        assert!(fused(LIBRARIES) == first);
    }
}

#[test]
fn a_merged_component_cannot_be_merged_again() {
    let again = fuse(&fused(LIBRARIES)).unwrap_err();

    assert!(again.to_string().contains("share no memory"), "{again}");
}

#[test]
fn a_component_that_cannot_be_merged_is_rejected_with_the_reason() {
    fn check(text: &str, reason: &str) {
        let error = fuse(&wat::parse_str(text).unwrap()).unwrap_err();
        assert!(matches!(error, FuseError::Unsupported(_)), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}, not {reason}");
    }
    fn changed(from: &str, to: &str, reason: &str) {
        assert!(LIBRARIES.contains(from), "{from}");
        check(&LIBRARIES.replacen(from, to, 1), reason);
    }
    let user = |inside: &str| {
        format!(
            r#"(component
                (core module $m (memory (export "memory") 1) (table (export "table") 4 funcref)
                    (global (export "g") (mut i32) (i32.const 1)))
                (core instance $m (instantiate $m))
                (core module $n (import "m" "memory" (memory 1)) {inside})
                (core instance (instantiate $n (with "m" (instance $m)))))"#
        )
    };
    check("(component)", "share no memory");
    check("(module)", "a module, not a component");
    check(&user("(func $start) (start $start)"), "has a start function");
    check(&user("(memory 1)").replace("(import \"m\" \"memory\" (memory 1))", ""), "2 memories");
    changed(
        "(elem (i32.const 0) func $say)",
        "(func $f) (elem (i32.const 0) func $say) (start $f)",
        "in between has a start function",
    );
    changed(
        r#"(core instance (instantiate $init (with "env" (instance $main)) (with "b" (instance $b))))"#,
        r#"(core instance (instantiate $init (with "env" (instance $main)) (with "b" (instance $b))))
           (core instance (instantiate $init (with "env" (instance $main)) (with "b" (instance $b))))"#,
        "more than once",
    );
    let into_their_table = LIBRARIES
        .replace(
            r#"(import "" "$imports" (table 2 2 funcref))"#,
            r#"(import "" "$imports" (table 2 funcref))"#,
        )
        .replace(r#"(export "$imports" (table $imports)))"#, r#"(export "$imports" (table $table)))"#);
    check(&into_their_table, "writes to a table of the merged modules");
    changed(
        "(core instance $shim (instantiate $shim))",
        r#"(core instance $shim (instantiate $shim))
           (core module $d (func (export "d") (param i32))) (core instance $d (instantiate $d))
           (alias core export $d "d" (core func $dtor)) (type $r (resource (rep i32) (dtor (core func $dtor))))"#,
        "destructor",
    );
    changed(
        "(core instance $shim (instantiate $shim))",
        r#"(component (alias outer 1 $a (core module $taken))) (core instance $shim (instantiate $shim))"#,
        "a nested component uses a core module",
    );
    changed(
        "(core instance (instantiate $fixup",
        r#"(core module $taker (import "m" "memory" (memory 1)) (import "" "0" (func (param i32 i32))))
           (core instance (instantiate $taker (with "m" (instance $main)) (with "" (instance $fixups))))
           (core instance (instantiate $fixup"#,
        "a whole instance of the group",
    );
}
