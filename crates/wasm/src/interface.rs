//! The WebAssembly functions that the script of an exported page calls: [`load`] once, then [`classify`] for each
//! image. Both take buffers that [`allocate`] returned. `usize` has 32 bits. An instance of the module has one engine.
//!
//! Both return the address of an answer in 32-bit words, valid until the next call: status (0 success, 1 failure),
//! length n, contents. The contents are a message of n bytes after a failure, nothing (n = 0) from `load`, and n `f32`
//! from `classify`: the probability that the image shows none of the classes, then one probability per class.

#![allow(unsafe_code, reason = "memory is shared with the page through addresses")]

use std::cell::RefCell;

use crate::engine::Engine;

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    static ANSWER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Allocates `length` zeroed bytes for the script to fill and pass to [`load`] or [`classify`], which free them.
#[unsafe(no_mangle)]
pub extern "C" fn allocate(length: usize) -> *mut u8 {
    Box::leak(vec![0; length].into_boxed_slice()).as_mut_ptr()
}

/// Reads the two safetensors files in the page, a backbone and a classifier. They replace those of an earlier call.
///
/// # Safety
/// Both buffers come from [`allocate`] with these lengths and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn load(
    backbone: *mut u8,
    backbone_length: usize,
    classifier: *mut u8,
    classifier_length: usize,
) -> *const u32 {
    // SAFETY: required of the caller.
    let (backbone, classifier) =
        unsafe { (taken(backbone, backbone_length), taken(classifier, classifier_length)) };
    answer(Engine::read(backbone, classifier).map(|engine| {
        ENGINE.set(Some(engine));
        Vec::new()
    }))
}

/// Classifies an RGBA image of `width * height` pixels, one byte per channel, rows from the top.
///
/// # Safety
/// The buffer comes from [`allocate`] with `4 * width * height` bytes and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn classify(pixels: *mut u8, width: usize, height: usize) -> *const u32 {
    // SAFETY: required of the caller.
    let pixels = unsafe { taken(pixels, 4 * width * height) };
    answer(ENGINE.with_borrow_mut(|engine| {
        let engine = engine.as_mut().ok_or("no classifier is loaded")?;
        let found = engine.classify(&pixels, width, height)?;
        Ok(std::iter::once(found.unknown).chain(found.probabilities).collect())
    }))
}

/// Takes ownership of a buffer that the script has filled.
///
/// # Safety
/// The buffer comes from [`allocate`] with this length and is not used afterwards.
unsafe fn taken(buffer: *mut u8, length: usize) -> Vec<u8> {
    // SAFETY: `allocate` leaked a boxed slice of this address and length.
    unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer, length)) }.into_vec()
}

/// Encodes an answer into `ANSWER`, in the form that the module documentation describes, and returns its address.
fn answer(result: Result<Vec<f32>, String>) -> *const u32 {
    ANSWER.with_borrow_mut(|answer| {
        answer.clear();
        match result {
            Ok(values) => {
                answer.extend([0, values.len() as u32]);
                answer.extend(values.iter().map(|value| value.to_bits()));
            }
            Err(message) => {
                answer.extend([1, message.len() as u32]);
                let words = message.as_bytes().chunks(4).map(|bytes| {
                    let mut word = [0; 4];
                    word[..bytes.len()].copy_from_slice(bytes);
                    u32::from_le_bytes(word)
                });
                answer.extend(words);
            }
        }
        answer.as_ptr()
    })
}
