//! Tests of the pickle reader: what is read, and what is refused.

use super::*;

/// Reads the pickle in these bytes.
fn read(bytes: &[u8]) -> Result<Pickle, PickleError> {
    Pickle::read(Bytes::copy_from_slice(bytes))
}

/// The error for these bytes.
fn refusal(bytes: &[u8]) -> String {
    read(bytes).map(|pickle| pickle.value().kind()).unwrap_err().to_string()
}

#[test]
fn numbers_strings_and_collections_are_read() {
    let pickle = read(b"\x80\x02}(U\x01a]K\x01aU\x01b(I-7\nI01\nF2.5\nL12345678901L\ntu.").unwrap();
    let value = pickle.value();
    assert_eq!(value.get("a").unwrap().whole_numbers(), Some(vec![1]));
    let tuple: Vec<_> = value.get("b").unwrap().items().unwrap().map(|item| item.float()).collect();
    assert_eq!(tuple, [Some(-7.0), Some(1.0), Some(2.5), Some(12_345_678_901.0)]);
    assert!(value.get("c").is_none());
}

#[test]
fn long_numbers_have_a_sign_and_at_most_64_bits() {
    let number = |bytes: &[u8]| read(bytes).ok().and_then(|pickle| pickle.value().integer());
    assert_eq!(number(b"\x8a\x00."), Some(0));
    assert_eq!(number(b"\x8a\x02\x00\xff."), Some(-256));
    assert_eq!(number(b"\x8a\x02\xff\x00."), Some(255));
    assert_eq!(number(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), None);
    assert_eq!(number(b"I99999999999999999999\n."), None);
}

#[test]
fn calls_of_unknown_functions_are_refused_with_their_names() {
    assert!(
        refusal(b"cos\nsystem\n(S'true'\ntR.")
            .contains("it calls os.system; only functions that restore NumPy arrays are known")
    );
    assert!(refusal(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.").contains("builtins.eval"));
    assert!(refusal(b"(S'true'\nios\nsystem\n.").contains("os.system"));
    assert!(refusal(b"\x80\x02ccopy_reg\n_reconstructor\n.").contains("copy_reg._reconstructor"));
    assert!(refusal(b"cnumpy\ndtype\n)\x81.").contains("constructor of a class"));
    assert!(refusal(b"\x80\x02\x82\x01.").contains("registered extension"));
    assert!(refusal(b"Pname\n.").contains("outside the file"));
    assert!(refusal(b"\x80\x05\x97.").contains("a buffer, which lies outside the file"));
    assert!(refusal(b"}}b.").contains("sets the state of an object"));
    assert!(refusal(b"K\x01)R.").contains("something that is not a function"));
}

#[test]
fn lengths_beyond_the_end_of_the_file_are_refused() {
    assert!(refusal(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.").contains("truncated"));
    assert!(refusal(b"T\xff\xff\xff\xff.").contains("truncated"));
    assert!(refusal(b"X\x10\x00\x00\x00abc").contains("truncated"));
    assert!(refusal(b"S'abc'").contains("truncated"));
    assert!(refusal(b"").contains("truncated at byte 0"));
    let element = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tRq\x000";
    let empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR";
    let state = b"(K\x01(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fth\x00I00\nU\x01atb.";
    let problem = refusal(&[&element[..], empty, state].concat());
    assert!(problem.contains("an array claims the shape [2147483647, 2147483647]"), "{problem}");
}

#[test]
fn nesting_is_limited_and_never_recursive() {
    assert!(refusal(&b"(".repeat(100_000)).contains("nested collections"));
    // Lists in lists without a mark: a million deep, and dropped without a stack of that depth.
    let deep = [&b"]".repeat(1_000_000)[..], &b"a".repeat(999_999), b"."].concat();
    assert_eq!(read(&deep).unwrap().value().kind(), "a list");
    // A list that contains itself.
    let circular = read(b"]q\x00h\x00a.").unwrap();
    assert_eq!(circular.value().items().unwrap().len(), 1);
}

#[test]
fn a_string_that_is_encoded_many_times_exceeds_a_limit() {
    let mut bytes = b"c_codecs\nencode\nq\x000X\x00\x00\x01\x00".to_vec();
    bytes.extend(b"a".repeat(1 << 16));
    bytes.extend(b"q\x010U\x06latin1q\x020(");
    bytes.extend(b"h\x00h\x01h\x02\x86R".repeat(10_000));
    bytes.extend(b"l.");
    assert!(refusal(&bytes).contains("bytes of strings"));
}

#[test]
fn invalid_instructions_are_errors_with_their_offset() {
    for bytes in [
        &b"."[..],
        b"a.",
        b"K\x01K\x01a.",
        b"h\x07.",
        b"t.",
        b"(K\x01d.",
        b"\xff.",
        b"K\x01K\x02s.",
        b"(.",
        b"0.",
    ] {
        assert!(refusal(bytes).starts_with("at byte "), "{bytes:?}: {}", refusal(bytes));
    }
}
