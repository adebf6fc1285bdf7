//! Memory that the engine allocates for one instance of a component in addition to its memories and tables, which are
//! counted as they grow: a record for each function that can be referred to, for each import and each global, and the
//! elements of passive segments. A component of a few megabytes can require hundreds of megabytes, because it may
//! instantiate each of its modules many times. The size is therefore computed from the component's structure before
//! there is an instance.

use wasmparser::{
    BinaryReaderError, ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind,
    ComponentTypeRef, ElementItems, ElementKind, Instance, Parser, Payload, TypeRef,
};

use crate::instance::CORE_INSTANCES_MAX;

/// Bytes of an empty instance of a module.
const INSTANCE_BYTES: u64 = 1024;

/// Bytes of a function that can be referred to, or is imported.
const FUNCTION_BYTES: u64 = 32;

/// Bytes of a global variable or of an import of another kind.
const GLOBAL_BYTES: u64 = 16;

/// Bytes of an element of a passive segment.
const ELEMENT_BYTES: u64 = 16;

/// Bytes of an instance. Sums saturate.
type Bytes = u64;

/// A component that is being parsed.
#[derive(Default)]
struct OpenComponent {
    /// Bytes of an instance of each of its modules, or `None` for a module from outside the file.
    modules: Vec<Option<Bytes>>,
    /// Bytes of an instance of each of its components.
    components: Vec<Option<Bytes>>,
    /// Bytes of its own instantiations.
    total: Bytes,
}

/// An item that is being parsed: modules nest in components, and components in components.
enum Reading {
    Component(OpenComponent),
    Module(Bytes),
}

/// Returns an upper bound of the bytes that the engine allocates for an instance of this component, which is already
/// validated.
pub(super) fn bytes_kept(component: &[u8]) -> Result<Bytes, BinaryReaderError> {
    let mut reading: Vec<Reading> = Vec::new();
    let mut largest_module = 0;
    let mut whole = 0;
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::Version { encoding: wasmparser::Encoding::Component, .. } => {
                reading.push(Reading::Component(OpenComponent::default()));
            }
            Payload::Version { .. } => reading.push(Reading::Module(INSTANCE_BYTES)),
            Payload::End(_) => {
                let (done, within) = (reading.pop(), reading.last_mut());
                match (done, within) {
                    (Some(Reading::Module(bytes)), within) => {
                        largest_module = largest_module.max(bytes);
                        if let Some(Reading::Component(around)) = within {
                            around.modules.push(Some(bytes));
                        }
                    }
                    (Some(Reading::Component(inner)), Some(Reading::Component(around))) => {
                        around.components.push(Some(inner.total));
                    }
                    (Some(Reading::Component(inner)), _) => whole = inner.total,
                    (None, _) => {}
                }
            }
            payload => match reading.last_mut() {
                Some(Reading::Module(bytes)) => *bytes = bytes.saturating_add(module_section_bytes(payload)?),
                Some(Reading::Component(_)) => read_component_section(payload, &mut reading, largest_module)?,
                None => {}
            },
        }
    }
    // With any nesting there are no more instances than this, or the component does not start.
    Ok(whole.min(largest_module.saturating_mul(CORE_INSTANCES_MAX.into())))
}

/// Returns the bytes that a section adds to each instance of its module.
fn module_section_bytes(payload: Payload<'_>) -> Result<Bytes, BinaryReaderError> {
    Ok(match payload {
        Payload::ImportSection(imports) => {
            let mut bytes: Bytes = 0;
            for import in imports.into_imports() {
                bytes = bytes.saturating_add(match import?.ty {
                    TypeRef::Func(_) => 2 * FUNCTION_BYTES,
                    _ => GLOBAL_BYTES,
                });
            }
            bytes
        }
        Payload::FunctionSection(functions) => FUNCTION_BYTES.saturating_mul(functions.count().into()),
        Payload::GlobalSection(globals) => GLOBAL_BYTES.saturating_mul(globals.count().into()),
        Payload::ElementSection(segments) => {
            let mut bytes: Bytes = 0;
            for segment in segments {
                let segment = segment?;
                let elements = match segment.items {
                    ElementItems::Functions(functions) => functions.count(),
                    ElementItems::Expressions(_, expressions) => expressions.count(),
                };
                if let ElementKind::Passive = segment.kind {
                    bytes = bytes.saturating_add(ELEMENT_BYTES.saturating_mul(elements.into()));
                }
            }
            bytes
        }
        _ => 0,
    })
}

/// An item that a section adds to a component's index space of modules or components, with the bytes of an instance if
/// they are known.
enum Definition {
    Module(Option<Bytes>),
    Component(Option<Bytes>),
}

/// Records a section of a component: modules and components from elsewhere, and instantiations.
fn read_component_section(
    payload: Payload<'_>,
    reading: &mut [Reading],
    largest_module: Bytes,
) -> Result<(), BinaryReaderError> {
    // A module of unknown size may be as large as the maximum number of instances of the largest module.
    let unknown = largest_module.saturating_mul(CORE_INSTANCES_MAX.into());
    let (mut definitions, mut total): (Vec<Definition>, Bytes) = (Vec::new(), 0);
    match payload {
        Payload::ComponentImportSection(imports) => {
            for import in imports {
                definitions.extend(imported_definition(import?.ty));
            }
        }
        Payload::ComponentAliasSection(aliases) => {
            for alias in aliases {
                definitions.extend(aliased_definition(alias?, reading));
            }
        }
        Payload::ComponentExportSection(exports) => {
            // An export adds an index for the same item.
            for export in exports {
                definitions.extend(definition_of_unknown_size(export?.kind));
            }
        }
        Payload::InstanceSection(instances) => {
            for instance in instances {
                if let Instance::Instantiate { module_index, .. } = instance? {
                    total = total.saturating_add(module(reading, 0, module_index).unwrap_or(unknown));
                }
            }
        }
        Payload::ComponentInstanceSection(instances) => {
            for instance in instances {
                if let ComponentInstance::Instantiate { component_index, .. } = instance? {
                    total = total.saturating_add(component(reading, 0, component_index).unwrap_or(unknown));
                }
            }
        }
        _ => {}
    }
    if let Some(Reading::Component(component)) = reading.last_mut() {
        for definition in definitions {
            match definition {
                Definition::Module(bytes) => component.modules.push(bytes),
                Definition::Component(bytes) => component.components.push(bytes),
            }
        }
        component.total = component.total.saturating_add(total);
    }
    Ok(())
}

fn imported_definition(ty: ComponentTypeRef) -> Option<Definition> {
    match ty {
        ComponentTypeRef::Module(_) => Some(Definition::Module(None)),
        ComponentTypeRef::Component(_) => Some(Definition::Component(None)),
        _ => None,
    }
}

fn aliased_definition(alias: ComponentAlias<'_>, reading: &[Reading]) -> Option<Definition> {
    match alias {
        ComponentAlias::InstanceExport { kind, .. } => definition_of_unknown_size(kind),
        ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, count, index } => {
            Some(Definition::Module(module(reading, count, index)))
        }
        ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, count, index } => {
            Some(Definition::Component(component(reading, count, index)))
        }
        _ => None,
    }
}

fn definition_of_unknown_size(kind: ComponentExternalKind) -> Option<Definition> {
    match kind {
        ComponentExternalKind::Module => Some(Definition::Module(None)),
        ComponentExternalKind::Component => Some(Definition::Component(None)),
        _ => None,
    }
}

/// Returns the bytes of a module in the `count`-th component around this one, if they are known.
fn module(reading: &[Reading], count: u32, index: u32) -> Option<Bytes> {
    *outer(reading, count)?.modules.get(index as usize)?
}

/// Returns the bytes of a component in the `count`-th component around this one, if they are known.
fn component(reading: &[Reading], count: u32, index: u32) -> Option<Bytes> {
    *outer(reading, count)?.components.get(index as usize)?
}

/// Returns the `count`-th component around this one.
fn outer(reading: &[Reading], count: u32) -> Option<&OpenComponent> {
    match reading.iter().rev().nth(count as usize)? {
        Reading::Component(component) => Some(component),
        Reading::Module(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: u64) {
        let component = wat::parse_str(text).unwrap();
        assert_eq!(bytes_kept(&component).unwrap(), expected, "{text}");
    }

    #[test]
    fn every_instance_of_a_module_counts_with_its_parts() {
        check("(component)", 0);
        check("(component (core module))", 0);
        check("(component (core module $m) (core instance (instantiate $m)))", 1024);
        let module = "(core module $m (func) (func) (global i32 (i32.const 0)) (elem func 0 0 0))";
        let one = 1024 + 2 * 32 + 16 + 3 * 16;
        check(&format!("(component {module} (core instance (instantiate $m)))"), one);
        check(
            &format!(
                "(component {module} (core instance (instantiate $m)) (core instance (instantiate $m)))"
            ),
            2 * one,
        );
    }

    #[test]
    fn nested_components_count_once_for_each_instantiation() {
        let inner = "(component $c (core instance (instantiate $m)) (core instance (instantiate $m)))";
        let twice = "(instance (instantiate $c)) (instance (instantiate $c))";
        check(&format!("(component (core module $m (func)) {inner} {twice})"), 4 * (1024 + 32));
    }

    #[test]
    fn modules_of_unknown_size_count_as_the_maximum() {
        let unknown = r#"
            (component
                (core module $m)
                (component $c (core module $n (func)) (export "n" (core module $n)))
                (instance $i (instantiate $c))
                (alias export $i "n" (core module $of))
                (core instance (instantiate $of)))
        "#;
        check(unknown, 64 * (1024 + 32));
    }
}
