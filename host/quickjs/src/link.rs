//! Links the engine's library with the conversions of a world.

use anyhow::{Context as _, Result};
use wasm_encoder::reencode::{Reencode as _, RoundtripReencoder};
use wasm_encoder::{
    CodeSection, CustomSection, ExportKind, ExportSection, Function, FunctionSection, ImportSection, Module,
    RawSection, TypeSection, ValType,
};
use wasmparser::{Parser, Payload};
use wit_component::StringEncoding;

use crate::world::World;

/// Module of the functions that libraries import from each other.
const LIBRARIES: &str = "env";

/// Functions that the engine imports from outside of the contract and of WASI, and that [`support_library`] provides:
/// the module and name of the import, and the number of its parameters.
///
/// The engine calls the first two to load further modules. There are none, because the program is one module. The third
/// resets an adapter for WASI's first version, which is not linked.
const SUPPORT: [(&str, &str, usize); 3] = [
    ("local:init/module-loader", "resolve", 5),
    ("local:init/module-loader", "load", 3),
    ("wasi_snapshot_preview1", "reset_adapter_state", 0),
];

/// Returns a component with an export `init`, which evaluates a program.
pub(crate) fn link(engine: &[u8], contract: &str, world: &World) -> Result<Vec<u8>> {
    let (resolve, world) = world.resolve(contract).context("the contract")?;
    let mut conversions = wit_dylib::create(&resolve, world, None);
    wit_component::embed_component_metadata(&mut conversions, &resolve, world, StringEncoding::UTF8)?;
    let mut linker = wit_component::Linker::default();
    linker.encoder().validate(true);
    linker.library("quickjs.wasm", &with_support(engine)?, false)?;
    linker.library("conversions.wasm", &conversions, false)?;
    linker.library("support.wasm", &support_library(), false)?;
    linker.encode()
}

fn support_name(module: &str, name: &str) -> Option<String> {
    let is_it = |(of, function, _): &&(&str, &str, usize)| *of == module && *function == name;
    SUPPORT.iter().find(is_it).map(|(module, name, _)| format!("{module}#{name}"))
}

/// Returns the engine's library with its imports of [`SUPPORT`] redirected to the support library, so that the
/// component does not import them.
fn with_support(library: &[u8]) -> Result<Vec<u8>> {
    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(library) {
        let payload = payload?;
        if let Payload::ImportSection(section) = payload {
            let mut imports = ImportSection::new();
            for import in section.into_imports() {
                let import = import?;
                let ty = RoundtripReencoder.entity_type(import.ty)?;
                match support_name(import.module, import.name) {
                    Some(name) => imports.import(LIBRARIES, &name, ty),
                    None => imports.import(import.module, import.name, ty),
                };
            }
            module.section(&imports);
        } else if let Some((id, range)) = payload.as_section() {
            module.section(&RawSection { id, data: &library[range] });
        }
    }
    Ok(module.finish())
}

/// Returns a library with the functions of [`SUPPORT`]. Those with parameters are never called and trap; the one
/// without parameters does nothing.
fn support_library() -> Vec<u8> {
    // One subsection, which requests no memory and no table, both without an alignment.
    const MEMORY_AND_TABLE: [u8; 6] = [1, 4, 0, 0, 0, 0];
    let (mut types, mut functions) = (TypeSection::new(), FunctionSection::new());
    let (mut exports, mut code) = (ExportSection::new(), CodeSection::new());
    for (index, (module, name, parameters)) in (0..).zip(SUPPORT) {
        types.ty().function(vec![ValType::I32; parameters], []);
        functions.function(index);
        exports.export(&format!("{module}#{name}"), ExportKind::Func, index);
        let mut function = Function::new([]);
        if parameters > 0 {
            function.instructions().unreachable();
        }
        function.instructions().end();
        code.function(&function);
    }
    let mut module = Module::new();
    module
        .section(&CustomSection { name: "dylink.0".into(), data: (&MEMORY_AND_TABLE[..]).into() })
        .section(&types)
        .section(&functions)
        .section(&exports)
        .section(&code);
    module.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_support_library_is_valid_and_has_every_function() {
        let library = support_library();

        wasmparser::Validator::new().validate_all(&library).unwrap();
        for (module, name, _) in SUPPORT {
            assert_eq!(support_name(module, name), Some(format!("{module}#{name}")));
        }
        assert_eq!(support_name("wasi:cli/exit@0.2.0", "exit"), None);
    }
}
