//! Printing of file and class names and other texts: [`visible`] escapes control characters, [`escaped_xml`] the
//! characters that mean something in XML and HTML, [`counted`] writes a number with its noun, and the other functions
//! measure and fit text to columns of a terminal.
//!
//! Names come from files of other people. A line end, an escape sequence or a mark that changes the direction of
//! writing could break a table or make a name look like another.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The narrowest width, in terminal columns, to which the file name of an item is shortened: four columns of its
/// beginning, an ellipsis, and four of its end, enough for an extension such as `.jpg`.
pub(crate) const MIN_FILE_NAME: usize = 9;

/// A name in one line, with control characters, line separators and invisible marks written as escapes. Letters of any
/// script are unchanged.
///
/// ```
/// assert_eq!(trueshot::report::visible("two\nlines"), "two\\nlines");
/// assert_eq!(trueshot::report::visible("猫.jpg"), "猫.jpg");
/// ```
pub fn visible(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            character if needs_escape(character) => shown.extend(character.escape_default()),
            character => shown.push(character),
        }
    }
    shown
}

/// A text of several lines, each escaped as by [`visible`].
pub fn visible_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

/// Whether a character is a control, a line separator, a mark of writing direction or otherwise invisible. The two
/// zero-width joiners are not escaped: Persian and emoji need them.
fn needs_escape(character: char) -> bool {
    let is_invisible = matches!(
        character,
        '\u{ad}' // soft hyphen
            | '\u{61c}' // Arabic letter mark
            | '\u{180e}' // Mongolian vowel separator
            | '\u{200b}' // zero-width space
            | '\u{200e}' | '\u{200f}' // marks of writing direction
            | '\u{2028}'..='\u{202e}' // line and paragraph separators, embeddings and overrides of writing direction
            | '\u{2060}'..='\u{2064}' // word joiner, invisible operators
            | '\u{2066}'..='\u{2069}' // isolates of writing direction
            | '\u{feff}' // byte order mark
    );
    character.is_control() || is_invisible
}

/// The width of a text in terminal columns.
pub fn display_width(text: &str) -> usize {
    text.width()
}

/// A text shortened to at most `max_columns` columns, with an ellipsis in its middle.
pub fn shortened(text: &str, max_columns: usize) -> String {
    if display_width(text) <= max_columns {
        return text.into();
    }
    let available = max_columns.saturating_sub(1);
    let head = take_columns(text.chars(), available / 2);
    let tail: String = take_columns(text.chars().rev(), available - available / 2).chars().rev().collect();
    format!("{head}…{tail}")
}

/// The name of an item (a path with `/`) shortened to at most `max_columns` columns, with an ellipsis in the middle of
/// its file name. The folders in front of the file name are never shortened, and the file name keeps at least nine
/// columns, so the result may be wider.
pub fn shortened_item(item: &str, max_columns: usize) -> String {
    let (folders, file) = item.split_at(item.rfind('/').map_or(0, |slash| slash + 1));
    let available = max_columns.saturating_sub(display_width(folders)).max(MIN_FILE_NAME);
    format!("{folders}{}", shortened(file, available))
}

/// A text wrapped at spaces into lines of at most `max_columns` columns; one line if there is no maximum. Longer words
/// are shortened.
pub(crate) fn wrapped(text: &str, max_columns: Option<usize>) -> Vec<String> {
    let Some(max_columns) = max_columns else { return vec![text.into()] };
    // A no-break space keeps a number and its percent sign on one line; it becomes a normal space again below.
    let text = text.replace(" %", "\u{a0}%");
    let mut lines = vec![String::new()];
    for word in text.split(' ').map(|word| shortened(&word.replace('\u{a0}', " "), max_columns)) {
        let line = lines.last_mut().expect("there is a first line");
        match line.is_empty() {
            true => line.push_str(&word),
            false if display_width(line) + 1 + display_width(&word) <= max_columns => {
                line.push_str(&format!(" {word}"))
            }
            false => lines.push(word),
        }
    }
    lines
}

/// The first characters that fit into `max_columns` columns.
fn take_columns(characters: impl Iterator<Item = char>, max_columns: usize) -> String {
    let mut used = 0;
    characters
        .take_while(|character| {
            used += character.width().unwrap_or(0);
            used <= max_columns
        })
        .collect()
}

/// A text padded with spaces to `width` columns.
pub fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(display_width(text))))
}

/// A count with its noun, and with its verb if it is part of `one` and `many`: `1 row is`, `2 rows are`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A text with `&`, `<`, `>` and `"` escaped, for the text and the attributes of XML and HTML.
pub fn escaped_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_letters_of_any_script_are_not() {
        assert_eq!(visible("two\nlines\t\u{202e}gpj.exe"), "two\\nlines\\t\\u{202e}gpj.exe");
        assert_eq!(visible("猫/Käse «été».jpg"), "猫/Käse «été».jpg");
    }

    #[test]
    fn line_ends_are_kept_in_texts_of_several_lines() {
        assert_eq!(visible_lines("a\x1b[31m\nb\r\u{9b}\n"), "a\\u{1b}[31m\nb\\r\\u{9b}\n");
    }

    #[test]
    fn texts_are_wrapped_at_spaces_but_not_before_a_percent_sign() {
        assert_eq!(wrapped("owl 55 %, ant 40 %", Some(12)), ["owl 55 %,", "ant 40 %"]);
        assert_eq!(wrapped("owl 55 %, ant 40 %", Some(15)), ["owl 55 %, ant", "40 %"]);
        assert_eq!(wrapped("owl 55 %", None), ["owl 55 %"]);
    }

    #[test]
    fn long_names_are_shortened_in_the_middle_by_columns() {
        assert_eq!(shortened("abcdefghij", 7), "abc…hij");
        assert_eq!(shortened("猫猫猫猫猫", 7), "猫…猫");
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(padded("猫", 4), "猫  ");
        assert_eq!(shortened_item("owl/a very long name.jpg", 16), "owl/a ver…me.jpg");
        assert_eq!(shortened_item("a long folder/a very long name.jpg", 16), "a long folder/a ve….jpg");
    }
}
