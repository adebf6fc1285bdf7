//! The prebuilt library of the engine.

use sha2::{Digest, Sha256};

use crate::Error;

/// Release of the crate `componentize-qjs` that contains the library.
pub const ENGINE_VERSION: &str = "0.4.5";

/// SHA-256 of `prebuilt/runtime-sync.wasm` in that crate.
const SHA256: &str = "25703f010b80efb806f9c35daf9ee6524ad60320c9781b0bae4e234264f8dac5";

/// QuickJS as a library for components: `runtime-sync.wasm` of `componentize-qjs`.
#[derive(Debug)]
pub struct EngineLibrary(Vec<u8>);

impl EngineLibrary {
    /// Checks that these bytes are the library that this crate was written for.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OtherEngine`] for any other bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, Error> {
        let digest = Sha256::digest(&bytes);
        if base16(&digest) == SHA256 { Ok(Self(bytes)) } else { Err(Error::OtherEngine) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn base16(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_is_rejected() {
        let error = EngineLibrary::new(b"\0asm".to_vec()).unwrap_err();

        assert!(error.to_string().contains(ENGINE_VERSION), "{error}");
    }
}
