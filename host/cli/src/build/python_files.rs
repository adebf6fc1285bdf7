//! The files of a Python project and its dependencies, in the form in which a base receives them (`_incoming.py`).

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Level of the compression of files in a component.
const LEVEL: u32 = 6;

/// List of the SDK's builder.
#[derive(Deserialize)]
struct Listed {
    /// Facts about the project.
    header: Map<String, Value>,
    /// Paths of the files in the component, and on this machine: the latter as a text with a character for each byte.
    files: Vec<(String, String)>,
}

/// Returns a line with a list of the files, followed by their compressed contents. `list` is a file of the SDK's builder.
///
/// Compression is done here because in a component, it would take most of the time of a build with large dependencies. It results
/// in the same bytes on any machine.
///
/// # Errors
///
/// Fails if a file cannot be read, or the list is invalid.
pub(super) fn compressed(list: &Path) -> Result<Vec<u8>> {
    let list = std::fs::read(list).context("the SDK's builder listed no files")?;
    let Listed { mut header, files } =
        serde_json::from_slice(&list).context("the list of the SDK's builder is invalid")?;
    let mut contents = Vec::new();
    let mut listed = Vec::with_capacity(files.len());
    for (path, at) in files {
        let at = path_of(&at)?;
        let content = std::fs::read(&at).with_context(|| format!("cannot read {}", at.display()))?;
        let before = contents.len();
        let mut encoder = ZlibEncoder::new(contents, Compression::new(LEVEL));
        encoder.write_all(&content).context("a file cannot be compressed")?;
        contents = encoder.finish().context("a file cannot be compressed")?;
        listed.push(Value::from(vec![
            Value::from(path),
            Value::from(content.len()),
            Value::from(contents.len() - before),
        ]));
    }
    header.insert("files".to_owned(), Value::from(listed));
    let mut made = serde_json::to_vec(&header)?;
    made.push(b'\n');
    made.append(&mut contents);
    Ok(made)
}

fn path_of(text: &str) -> Result<PathBuf> {
    let bytes: Result<Vec<u8>, _> = text.chars().map(|each| u8::try_from(u32::from(each))).collect();
    Ok(OsString::from_vec(bytes.context("the list of the SDK's builder has an invalid path")?).into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::ZlibDecoder;
    use serde_json::json;

    use super::*;

    #[test]
    fn files_follow_their_list_in_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let texts = ["x = 1\n".repeat(100), String::new()];
        let places = ["/0/one.py", "/2/thing/__init__.py"];
        // A name in Latin-1.
        let names = ["caf\u{e9}.py", "two.py"];
        let mut files = Vec::new();
        for ((text, place), name) in texts.iter().zip(places).zip(names) {
            let at = format!("{}/{name}", dir.path().display());
            std::fs::write(path_of(&at).unwrap(), text).unwrap();
            files.push(json!([place, at]));
        }
        let list = dir.path().join("list.json");
        std::fs::write(&list, json!({"header": {"entry": "one"}, "files": files}).to_string()).unwrap();

        let made = compressed(&list).unwrap();

        let end = made.iter().position(|byte| *byte == b'\n').unwrap();
        let header: Value = serde_json::from_slice(&made[..end]).unwrap();
        assert_eq!(header["entry"], "one");
        let mut rest = &made[end + 1..];
        for ((text, place), listed) in texts.iter().zip(places).zip(header["files"].as_array().unwrap()) {
            let (packed, after) = rest.split_at(usize::try_from(listed[2].as_u64().unwrap()).unwrap());
            rest = after;
            let mut content = String::new();
            ZlibDecoder::new(packed).read_to_string(&mut content).unwrap();
            assert_eq!((&content, &listed[0], &listed[1]), (text, &json!(place), &json!(text.len())));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn a_file_that_is_gone_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list.json");
        std::fs::write(&list, json!({"header": {}, "files": [["/0/a.py", "/nowhere/a.py"]]}).to_string())
            .unwrap();
        assert_eq!(compressed(&list).unwrap_err().to_string(), "cannot read /nowhere/a.py");
    }
}
