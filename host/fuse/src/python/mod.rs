//! Prepares the initial memory of a Python component, so that its instances do not count references to objects in the
//! image, and that two builds of the same source are equal.
//!
//! The initial memory of a component is one image. Its instances share a page of it until one of them writes to the page.
//! An interpreter writes to each object that it uses, because it counts references, unless the count is so high that the
//! object can never be freed. Objects in the image are never freed, so [`settle`] sets their counts that high. The SDK
//! (`_image.py`) leaves a list of the objects in the memory, and [`settle`] removes it.

mod error;
mod heap;
mod image;
mod level;
mod repeat;
mod sections;

pub use error::ImageError;
use error::{Result, unknown};
use image::Image;
pub use image::Places;
pub use level::level;
use sections::{CORE_MODULE, DATA, sections, with_data, with_module};

/// Error of a component with another version of Python.
const UNKNOWN_PYTHON: &str = "the component's Python is not the one that this program knows";

/// Returns the component with the reference counts set, without the list of objects, and without bytes that differ from
/// build to build. `places` are those of the component as componentize-py made it.
///
/// # Errors
///
/// Fails if the component was built with another version of the SDK, of componentize-py or of Python.
pub fn settle(component: &[u8], places: &Places) -> Result<Vec<u8>> {
    with_image(component, |image| {
        repeat::forget(image, places)?;
        heap::take_free(image);
        let freed = heap::take_freed_objects(image, places.named("libpython3.14.so:memory_base")?);
        freed.map(|_| ()).ok_or_else(|| unknown(UNKNOWN_PYTHON))
    })
}

/// Sets the reference counts, removes the list of objects and applies `change` to the image.
fn with_image(component: &[u8], change: impl FnOnce(&mut Image) -> Result<()>) -> Result<Vec<u8>> {
    let outer = sections(component)?;
    for (at, (id, range)) in outer.iter().enumerate() {
        if *id != CORE_MODULE {
            continue;
        }
        let module = &component[range.clone()];
        let inner = sections(module)?;
        let Some((_, data)) = inner.iter().find(|(id, _)| *id == DATA) else { continue };
        let mut image = Image::read(&module[data.clone()])?;
        let Some(list) = image.find_list() else { continue };
        image.stop_counting(&list.addresses);
        image.fill(list.place, 0);
        change(&mut image)?;
        let module = with_data(module, &inner, &image.segments());
        return Ok(with_module(component, &outer, at, &module));
    }
    Err(unknown("the component's memory has no list of its objects; was it built by another SDK?"))
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{Component, ConstExpr, DataSection, Module, RawSection};

    use super::image::{MARK, UNCOUNTED, UNCOUNTED_MIN};
    use super::*;

    const TYPE: u32 = 0x1000;

    /// Returns a component with a module whose memory has these words at these addresses.
    fn component(words: &[(u32, &[u32])]) -> Vec<u8> {
        let mut data = DataSection::new();
        for (at, words) in words {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            data.active(0, &ConstExpr::i32_const(at.cast_signed()), bytes);
        }
        let mut module = Module::new();
        let mut memories = wasm_encoder::MemorySection::new();
        memories.memory(wasm_encoder::MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        module.section(&memories).section(&data);
        let mut component = Component::new();
        component.section(&RawSection { id: CORE_MODULE, data: &module.finish() });
        component.finish()
    }

    fn list(addresses: &[u32]) -> Vec<u32> {
        let mark = MARK.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let sum = addresses.iter().sum();
        let count = u32::try_from(addresses.len()).unwrap();
        mark.chain([count]).chain(addresses.iter().copied()).chain([sum]).collect()
    }

    fn image(component: &[u8]) -> Image {
        let (_, module) = sections(component).unwrap().remove(0);
        let module = &component[module];
        let data = sections(module).unwrap().into_iter().find(|(id, _)| *id == DATA).unwrap().1;
        Image::read(&module[data]).unwrap()
    }

    #[test]
    fn references_to_objects_are_not_counted_and_freed_objects_are_left_alone() {
        const ALIVE: u32 = 0x2000;
        const GONE: u32 = 0x2010;
        const IN_FREE_LIST: u32 = 0x2020;
        const NO_OBJECT: u32 = 0x2030;
        const SETTLED: u32 = 0x2040;
        let objects = [TYPE, ALIVE, GONE, IN_FREE_LIST, NO_OBJECT, SETTLED, 0x00FF_0000];
        let before = component(&[
            (TYPE, &[7, TYPE]),
            (ALIVE, &[3, TYPE, 42]),
            (GONE, &[0, TYPE]),
            (IN_FREE_LIST, &[GONE, TYPE]),
            (NO_OBJECT, &[3, 0x2004]),
            (SETTLED, &[UNCOUNTED_MIN + 5, TYPE]),
            (0x4000, &list(&objects)),
            (0x5000, &[0x4F4C_4C4F]),
        ]);

        let after = with_image(&before, |_| Ok(())).unwrap();

        wasmparser::Validator::new().validate_all(&after).unwrap();
        let image = image(&after);
        let words = |at: u32| [image.word_at(at).unwrap(), image.word_at(at + 4).unwrap()];
        assert_eq!(words(TYPE), [UNCOUNTED, TYPE]);
        assert_eq!(words(ALIVE), [UNCOUNTED, TYPE]);
        assert_eq!(image.word_at(ALIVE + 8), Some(42));
        assert_eq!(words(GONE), [0, TYPE]);
        assert_eq!(words(IN_FREE_LIST), [GONE, TYPE]);
        assert_eq!(words(NO_OBJECT), [3, 0x2004]);
        assert_eq!(words(SETTLED), [UNCOUNTED_MIN + 5, TYPE]);
        assert_eq!(image.word_at(0x5000), Some(0x4F4C_4C4F));
        assert!(
            image.bytes_at(0x4000, 0x1000).unwrap().iter().all(|byte| *byte == 0),
            "the list is still there"
        );
    }

    #[test]
    fn a_component_without_a_list_that_adds_up_is_refused() {
        let mut broken = list(&[TYPE]);
        *broken.last_mut().unwrap() += 1;
        for words in [broken, vec![1, 2, 3]] {
            let error = with_image(&component(&[(0x4000, &words)]), |_| Ok(())).unwrap_err().to_string();

            assert!(error.contains("no list of its objects"), "{error}");
        }
        assert!(with_image(b"\0asm", |_| Ok(())).is_err());
        assert!(Places::of(&component(&[])).is_err());
    }
}
