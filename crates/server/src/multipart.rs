//! Parses forms (`multipart/form-data`, RFC 7578) that have been received completely ([`form_files`]). Files are slices
//! of the body.
//!
//! A form is refused only if its structure is invalid. A file whose name cannot be used is returned with the reason, so
//! that the other files of the form are not lost.

use bytes::Bytes;
use memchr::memmem;

use crate::limits::{MAX_ITEMS, MAX_NAME_BYTES};
use crate::problem::Problem;

/// The longest boundary that RFC 2046 allows.
const MAX_BOUNDARY_BYTES: usize = 70;
/// The maximum length of the headers of a part in bytes.
const MAX_HEADER_BYTES: usize = 16 << 10;

/// One file of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFile {
    /// The name of the form field that contains the file.
    pub field: String,
    /// The file name, possibly with folders; "image N" for the N-th file of the form if it has none.
    pub file: String,
    /// The contents of the file, or why it cannot be used.
    pub contents: Result<Bytes, String>,
}

/// The boundary in the content type of a form.
pub fn parse_boundary(content_type: &str) -> Result<String, Problem> {
    let boundary = find_parameter(content_type.as_bytes(), "boundary").map(|boundary| boundary.text);
    let usable = boundary.filter(|boundary| (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len()));
    usable.ok_or_else(|| {
        let error = format!(
            "the form cannot be parsed: its content type has no boundary of 1 to {MAX_BOUNDARY_BYTES} bytes"
        );
        Problem::malformed(error)
    })
}

/// The files of a form, in the order of the body. `boundary` is that of the content type ([`parse_boundary`]).
pub fn form_files(body: &Bytes, boundary: &str) -> Result<Vec<FormFile>, Problem> {
    let mut files = Vec::new();
    for part in parts(body, boundary)? {
        files.push(form_file(&part, files.len() + 1)?);
    }
    if files.is_empty() {
        return Err(Problem::unusable("the form contains no images"));
    }
    Ok(files)
}

/// The error for a form whose structure is invalid.
fn malformed_form(problem: &str) -> Problem {
    Problem::malformed(format!("the form cannot be parsed: {problem}"))
}

/// The parts of the body between the boundaries.
fn parts(body: &Bytes, boundary: &str) -> Result<Vec<Bytes>, Problem> {
    let delimiter = format!("\r\n--{boundary}");
    let finder = memmem::Finder::new(&delimiter);
    let mut parts = Vec::new();
    // `at` is the position after a boundary. The first boundary needs no line break before it.
    let mut at = match body.starts_with(&delimiter.as_bytes()[2..]) {
        true => delimiter.len() - 2,
        false => {
            finder.find(body).ok_or_else(|| malformed_form("its boundary does not occur in the body"))?
                + delimiter.len()
        }
    };
    // `--` after a boundary ends the form.
    while !body[at..].starts_with(b"--") {
        if parts.len() == MAX_ITEMS {
            return Err(Problem::too_large(format!("the form has more than {MAX_ITEMS} images")));
        }
        let padding = body[at..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let start = at + padding;
        if !body[start..].starts_with(b"\r\n") {
            return Err(malformed_form("a boundary is not followed by a line break"));
        }
        // The part begins after the line break (2 bytes). The search starts at the line break, because it belongs to
        // the next boundary if the part is empty.
        let length =
            finder.find(&body[start..]).ok_or_else(|| malformed_form("it ends before its last boundary"))?;
        parts.push(body.slice((start + 2).min(start + length)..start + length));
        at = start + length + delimiter.len();
    }
    Ok(parts)
}

/// The file in a part: its headers, an empty line, and its contents. `number` counts the files from 1, for messages.
fn form_file(part: &Bytes, number: usize) -> Result<FormFile, Problem> {
    let (headers, contents) = match memmem::find(part, b"\r\n\r\n") {
        // Without headers, the part begins with the empty line.
        _ if part.starts_with(b"\r\n") => (&part[..0], part.slice(2..)),
        Some(end) => (&part[..end], part.slice(end + 4..)),
        None => return Err(malformed_form(&format!("the headers of part {number} do not end"))),
    };
    if headers.len() > MAX_HEADER_BYTES {
        return Err(malformed_form(&format!(
            "the headers of part {number} have more than {MAX_HEADER_BYTES} bytes"
        )));
    }
    let disposition = content_disposition(headers);
    let field = find_parameter(disposition, "name")
        .unwrap_or(ParameterValue { text: String::new(), is_closed: true });
    let file = find_parameter(disposition, "filename").filter(|file| !file.text.is_empty());
    for (what, name) in [("name of the field", Some(&field)), ("file name", file.as_ref())] {
        if name.is_some_and(|name| name.text.len() > MAX_NAME_BYTES) {
            let error = format!("the {what} of image {number} has more than {MAX_NAME_BYTES} bytes");
            return Err(Problem::unusable(error));
        }
    }
    let problem = field.problem("name of the field").or_else(|| file.as_ref()?.problem("file name"));
    let file = file.map_or_else(|| format!("image {number}"), |file| file.text);
    Ok(FormFile { field: field.text, file, contents: problem.map_or(Ok(contents), Err) })
}

/// The value of the header that contains the names.
fn content_disposition(headers: &[u8]) -> &[u8] {
    const NAME: &[u8] = b"content-disposition:";
    let mut start = 0;
    for end in memmem::find_iter(headers, b"\r\n").chain([headers.len()]) {
        let line = &headers[start..end];
        if line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            // A line break within a quoted name belongs to the name, although clients should not send one.
            let is_open = unescaped_quotes(line) % 2 == 1;
            return if is_open { &headers[start + NAME.len()..] } else { &line[NAME.len()..] };
        }
        start = end + 2;
    }
    &[]
}

/// The number of quotation marks without a backslash before them. If it is odd, a quoted name continues after the line.
fn unescaped_quotes(line: &[u8]) -> usize {
    let mut is_escaped = false;
    let mut count = 0;
    for byte in line {
        count += usize::from(*byte == b'"' && !is_escaped);
        is_escaped = *byte == b'\\' && !is_escaped;
    }
    count
}

/// The value of a parameter of a header.
#[derive(Debug, PartialEq, Eq)]
struct ParameterValue {
    text: String,
    /// Whether there is a closing quotation mark.
    is_closed: bool,
}

impl ParameterValue {
    /// Why the value cannot be used as a name.
    fn problem(&self, what: &str) -> Option<String> {
        match self.text.chars().find(|character| character.is_control()) {
            Some(character) => {
                let code = u32::from(character);
                Some(format!("the {what} contains a control character (U+{code:04X}); rename it"))
            }
            None if !self.is_closed => Some(format!("the {what} has no closing quotation mark")),
            None => None,
        }
    }
}

/// Finds a parameter in the value of a header: `form-data; name="a"; filename=b`.
fn find_parameter(header: &[u8], name: &str) -> Option<ParameterValue> {
    let mut rest = header;
    loop {
        // The next semicolon; those within quotation marks were skipped with their values.
        let next = memchr::memchr(b';', rest)?;
        rest = rest[next + 1..].trim_ascii_start();
        let end = rest.iter().position(|byte| matches!(byte, b'=' | b';'))?;
        let key = rest[..end].trim_ascii_end();
        if rest[end] == b';' {
            rest = &rest[end..];
            continue;
        }
        let (value, after) = parse_value(rest[end + 1..].trim_ascii_start());
        if key.eq_ignore_ascii_case(name.as_bytes()) {
            return Some(value);
        }
        rest = after;
    }
}

/// A value with or without quotation marks, and the text after it.
fn parse_value(text: &[u8]) -> (ParameterValue, &[u8]) {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t')).unwrap_or(text.len());
        let value = String::from_utf8_lossy(&text[..end]).into_owned();
        return (ParameterValue { text: value, is_closed: true }, &text[end..]);
    };
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(&byte) = quoted.get(at) {
        match byte {
            b'"' => break,
            // Browsers do not escape backslashes; other clients escape quotation marks with them.
            b'\\' if quoted.get(at + 1) == Some(&b'"') => {
                bytes.push(b'"');
                at += 1;
            }
            byte => bytes.push(byte),
        }
        at += 1;
    }
    let is_closed = at < quoted.len();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (ParameterValue { text, is_closed }, quoted.get(at + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(parts: &[(&str, &str)]) -> Bytes {
        let part = |(head, contents): &(&str, &str)| format!("--edge\r\n{head}\r\n\r\n{contents}\r\n");
        format!("{}--edge--\r\n", parts.iter().map(part).collect::<String>()).into()
    }

    /// The file of a form with one part that has these headers.
    fn file_with_headers(head: &str) -> FormFile {
        form_files(&form(&[(head, "contents")]), "edge").unwrap().remove(0)
    }

    /// The file of a form with one part that has these parameters in its `Content-Disposition`.
    fn file_with_names(parameters: &str) -> FormFile {
        file_with_headers(&format!("Content-Disposition: form-data; {parameters}\r\nContent-Type: image/png"))
    }

    #[test]
    fn boundaries_are_found_in_all_notations() {
        for (content_type, boundary) in [
            ("multipart/form-data; boundary=edge", "edge"),
            ("multipart/form-data; charset=utf-8; Boundary=\"an edge; of it\"", "an edge; of it"),
            ("multipart/form-data;boundary=----WebKitFormBoundary7M", "----WebKitFormBoundary7M"),
        ] {
            assert_eq!(parse_boundary(content_type).unwrap(), boundary);
        }
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for content_type in ["multipart/form-data", "multipart/form-data; boundary=", &long] {
            assert!(parse_boundary(content_type).is_err(), "{content_type}");
        }
    }

    #[test]
    fn fields_file_names_and_contents_are_parsed() {
        let body = form(&[
            ("content-disposition: form-data; name=\"cat\"; filename=\"1.jpg\"", "one\r\n--edg\r\n"),
            ("Content-Type: image/png\r\nContent-Disposition:form-data;filename=2.png;name=dog", ""),
        ]);
        let parsed = form_files(&body, "edge").unwrap();
        assert_eq!((parsed[0].field.as_str(), parsed[0].file.as_str()), ("cat", "1.jpg"));
        assert_eq!(parsed[0].contents.as_deref(), Ok(&b"one\r\n--edg\r\n"[..]));
        assert_eq!((parsed[1].field.as_str(), parsed[1].file.as_str()), ("dog", "2.png"));
        assert_eq!(parsed[1].contents.as_deref(), Ok(&b""[..]));
        let with_preamble = [b"ignored\r\n".as_slice(), &body, b"ignored too"].concat();
        assert_eq!(form_files(&with_preamble.into(), "edge").unwrap(), parsed);
        assert_eq!(
            form_files(&Bytes::from_static(b"--edge \t\r\n\r\nbare\r\n--edge--"), "edge").unwrap()[0]
                .contents
                .as_deref(),
            Ok(&b"bare"[..])
        );
    }

    #[test]
    fn names_are_parsed_as_browsers_and_other_programs_write_them() {
        assert_eq!(
            file_with_names("name=\"a\"; filename=\"K\u{e4}fer \u{1f41e}.png\"").file,
            "K\u{e4}fer \u{1f41e}.png"
        );
        assert_eq!(
            file_with_names("name=\"a\"; filename=\"with \\\"quotes\\\"; and more.png\"").file,
            "with \"quotes\"; and more.png"
        );
        assert_eq!(
            file_with_names("name=\"a\"; filename=\"C:\\photos\\cat.png\"").file,
            "C:\\photos\\cat.png"
        );
        assert_eq!(file_with_names("NAME=\"a\"; FileName=\"b\"").file, "b");
        assert_eq!(file_with_names("filename=\"name=x; b\"; name=\"a\"").field, "a");
        assert_eq!(file_with_names("name=\"a\"").file, "image 1");
        assert_eq!(file_with_headers("Content-Type: image/png").field, "");
    }

    #[test]
    fn a_control_character_in_a_name_makes_only_that_file_unusable() {
        for (name, code) in [
            ("a\u{7}.png", "0007"),
            ("a\0.png", "0000"),
            ("a\n.png", "000A"),
            ("a\r\n.png", "000D"),
            ("a\u{85}.png", "0085"),
        ] {
            let head = format!("Content-Disposition: form-data; name=\"cat\"; filename=\"{name}\"");
            let good = "Content-Disposition: form-data; name=\"dog\"; filename=\"good.png\"";
            let parsed = form_files(&form(&[(good, "1"), (&head, "2"), (good, "3")]), "edge").unwrap();
            assert_eq!(parsed[1].file, name);
            let expected = format!("the file name contains a control character (U+{code}); rename it");
            assert_eq!(parsed[1].contents, Err(expected));
            assert_eq!(parsed[0].contents.as_deref(), Ok(&b"1"[..]));
            assert_eq!(parsed[2].contents.as_deref(), Ok(&b"3"[..]));
        }
        assert!(
            file_with_names("name=\"a\u{1b}\"; filename=\"b\"")
                .contents
                .unwrap_err()
                .contains("name of the field")
        );
        assert!(file_with_names("name=\"a\"; filename=\"b").contents.is_err());
    }

    #[test]
    fn invalid_forms_are_refused() {
        for body in [
            "",
            "nonsense",
            "--edge",
            "--edge\r\n",
            "--edgeX\r\n\r\n\r\n--edge--",
            "--edge\r\nhead\r\n--edge--",
            "--edge\r\nhead\r\n\r\ncontents",
            "--edge\r\n\r\na\r\n--edge",
        ] {
            assert!(form_files(&Bytes::from(body), "edge").is_err(), "{body:?}");
        }
        let long = format!("X: {}", "x".repeat(MAX_HEADER_BYTES));
        assert!(form_files(&form(&[(&long, "")]), "edge").is_err());
    }

    #[test]
    fn too_many_files_and_names_that_are_too_long_are_refused() {
        let many = "--edge\r\n\r\n\r\n".repeat(MAX_ITEMS + 1) + "--edge--";
        assert_eq!(form_files(&many.into(), "edge").unwrap_err().status(), 413);
        let many_without_end = "--edge\r\n\r\n\r\n".repeat(MAX_ITEMS + 2);
        let refused = form_files(&many_without_end.into(), "edge").unwrap_err();
        assert_eq!(refused.status(), 413, "before the rest of the body is searched");
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for (parameters, what) in [
            (format!("name=\"{long}\""), "the name of the field of image 1"),
            (format!("name=\"a\"; filename=\"{long}\""), "the file name of image 1"),
        ] {
            let head = format!("Content-Disposition: form-data; {parameters}");
            let refused = form_files(&form(&[(&head, "")]), "edge").unwrap_err();
            assert_eq!(refused.status(), 422);
            assert!(format!("{refused:?}").contains(what), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(pieces in prop::collection::vec(piece(), 0..40)) {
            let body: Bytes = pieces.concat().into();
            let _ = form_files(&body, "edge");
        }

        #[test]
        fn any_files_are_parsed(files in prop::collection::vec(("[a-z]{1,8}", prop::collection::vec(any::<u8>(), 0..60)), 1..10)) {
            prop_assume!(files.iter().all(|(_, contents)| memmem::find(contents, b"--edge").is_none()));
            let mut body = Vec::new();
            for (name, contents) in &files {
                body.extend(format!("--edge\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\n\r\n").bytes());
                body.extend(contents);
                body.extend(b"\r\n");
            }
            body.extend(b"--edge--\r\n");
            let parsed = form_files(&body.into(), "edge").unwrap();
            prop_assert_eq!(parsed.len(), files.len());
            for (parsed_file, (name, contents)) in parsed.iter().zip(&files) {
                prop_assert_eq!(&parsed_file.file, name);
                prop_assert_eq!(parsed_file.contents.as_deref(), Ok(&contents[..]));
            }
        }
    }

    /// A piece of a form, or sometimes a random byte.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let known: Vec<&'static [u8]> = vec![
            b"--edge",
            b"--edge--",
            b"\r\n",
            b"\r\n\r\n",
            b"\r",
            b"\n",
            b"Content-Disposition: form-data",
            b"; name=",
            b"; filename=",
            b"\"",
            b"\\",
            b"=",
            b";",
            b"a",
            b"\0",
            b" ",
        ];
        prop_oneof![20 => prop::sample::select(known).prop_map(<[u8]>::to_vec), 1 => any::<u8>().prop_map(|byte| vec![byte])]
    }
}
