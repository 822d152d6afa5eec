//! String escapes of pickle protocol 0, which is ASCII. Both functions return `None` for an escape that is not valid.

/// Decodes a Unicode string: `\u` with four hexadecimal digits and `\U` with eight are the character of that number;
/// every other byte is a character of Latin-1.
pub(super) fn unicode(line: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = match after.first() {
            Some(b'u') if byte == b'\\' => 4,
            Some(b'U') if byte == b'\\' => 8,
            _ => 0,
        };
        if digits == 0 {
            text.push(char::from(byte));
            rest = after;
            continue;
        }
        text.push(char::from_u32(hexadecimal(after.get(1..=digits)?)?)?);
        rest = &after[1 + digits..];
    }
    Some(text)
}

/// Decodes a quoted string, written as the `repr` of Python 2.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let (&quote, rest) = line.split_first()?;
    let (&last, mut rest) = rest.split_last()?;
    if !matches!(quote, b'\'' | b'"') || last != quote {
        return None;
    }
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&byte, after)) = rest.split_first() {
        let taken = match (byte, after.first()) {
            (b'\\', Some(&escape)) => 1 + escaped(escape, after, &mut bytes)?,
            (b'\\', None) => return None,
            _ => {
                bytes.push(byte);
                1
            }
        };
        rest = &rest[taken..];
    }
    Some(bytes)
}

/// Decodes an escape and appends it to `bytes`. `after` are the bytes after the backslash, `escape` the first of them.
/// Returns the number of bytes that the escape has after the backslash.
fn escaped(escape: u8, after: &[u8], bytes: &mut Vec<u8>) -> Option<usize> {
    let (byte, taken) = match escape {
        b'\\' | b'\'' | b'"' => (escape, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'a' => (7, 1),
        b'b' => (8, 1),
        b'v' => (11, 1),
        b'f' => (12, 1),
        b'x' => (hexadecimal(after.get(1..3)?)? as u8, 3),
        b'0'..=b'7' => {
            let digits = after.iter().take(3).take_while(|digit| matches!(digit, b'0'..=b'7')).count();
            let value =
                after[..digits].iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
            (u8::try_from(value).ok()?, digits)
        }
        _ => {
            // Python keeps unknown escapes unchanged.
            bytes.push(b'\\');
            (escape, 1)
        }
    };
    bytes.push(byte);
    Some(taken)
}

/// The number that hexadecimal digits stand for.
fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_as_in_python() {
        assert_eq!(quoted(br"'a\x00\xff\n\'\\\101\q'").unwrap(), b"a\x00\xff\n'\\A\\q");
        assert_eq!(quoted(br#""it's""#).unwrap(), b"it's");
        assert_eq!(unicode(br"\u00e9l\U0001f989\n").unwrap(), "él🦉\\n");
        assert_eq!(unicode(b"\xe9").unwrap(), "é");
    }

    #[test]
    fn invalid_strings_and_escapes_are_refused() {
        for line in [&br"'a"[..], br"'a\", br"'\x1'", br"'\xgg'", b"'", b"", br"a"] {
            assert_eq!(quoted(line), None, "{line:?}");
        }
        for line in [&br"\u12"[..], br"\ud800", br"\U99999999"] {
            assert_eq!(unicode(line), None, "{line:?}");
        }
    }
}
