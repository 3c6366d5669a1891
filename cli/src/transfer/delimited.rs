//! CSV and TSV with two columns.
//!
//! A field that begins with a quote ends with one, and holds delimiters, line ends, and quotes as two.
//! In another field a quote is a letter like any other. Invariants: nothing is trimmed; a quoted
//! field that is not closed, or goes on behind its quote, is an error (a lenient reader would swallow
//! the lines that follow).

/// Key and value, as they are written.
pub(crate) type Columns = (Vec<u8>, Vec<u8>);

/// Puts one record together from lines.
#[derive(Debug)]
pub(crate) struct Parser {
    delimiter: u8,
    fields: Vec<Vec<u8>>,
    field: Vec<u8>,
    state: State,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    /// Nothing of the field has been seen.
    Start,
    /// In a field without quotes.
    Plain,
    /// Between quotes.
    Quoted,
    /// Behind a quote within quotes: the end of the field, or half of a doubled quote.
    QuoteInQuoted,
}

impl Parser {
    pub(crate) fn new(delimiter: u8) -> Self {
        Self { delimiter, fields: Vec::new(), field: Vec::new(), state: State::Start }
    }

    /// Takes the next line, with its end if it has one; true: the record is complete.
    pub(crate) fn line(&mut self, line: &[u8]) -> Result<bool, String> {
        let (body, end) = split_end(line);
        for &byte in body {
            self.byte(byte)?;
        }
        if self.state == State::Quoted {
            self.field.extend_from_slice(end);
            return Ok(false);
        }
        self.end_field();
        Ok(true)
    }

    fn byte(&mut self, byte: u8) -> Result<(), String> {
        match self.state {
            State::Start if byte == b'"' => self.state = State::Quoted,
            State::Start | State::Plain if byte == self.delimiter => self.end_field(),
            State::Start | State::Plain => {
                self.field.push(byte);
                self.state = State::Plain;
            }
            State::Quoted if byte == b'"' => self.state = State::QuoteInQuoted,
            State::Quoted => self.field.push(byte),
            State::QuoteInQuoted if byte == b'"' => {
                self.field.push(byte);
                self.state = State::Quoted;
            }
            State::QuoteInQuoted if byte == self.delimiter => self.end_field(),
            State::QuoteInQuoted => {
                let column = self.fields.len() + 1;
                return Err(format!(
                    "column {column} goes on behind its closing quote: \
                     a quote within quotes is written twice"
                ));
            }
        }
        Ok(())
    }

    fn end_field(&mut self) {
        self.fields.push(std::mem::take(&mut self.field));
        self.state = State::Start;
    }

    /// Bytes of the record so far.
    pub(crate) fn len(&self) -> usize {
        self.field.len() + self.fields.iter().map(Vec::len).sum::<usize>()
    }

    /// The two columns of a complete record.
    pub(crate) fn finish(self) -> Result<Columns, String> {
        let count = self.fields.len();
        let mut fields = self.fields.into_iter();
        match (fields.next(), fields.next(), fields.next()) {
            (Some(key), Some(value), None) => Ok((key, value)),
            _ => {
                let name = if self.delimiter == b'\t' { "tab" } else { "comma" };
                let columns = if count == 1 { "column" } else { "columns" };
                Err(format!("{count} {columns} instead of 2 (key {name} value)"))
            }
        }
    }
}

/// A line without its end, and the end: LF or CR LF.
fn split_end(line: &[u8]) -> (&[u8], &[u8]) {
    let body = match line {
        [body @ .., b'\r', b'\n'] | [body @ .., b'\n'] => body,
        _ => line,
    };
    line.split_at(body.len())
}

/// Appends one record with its line end.
pub(crate) fn write(line: &mut Vec<u8>, delimiter: u8, key: &[u8], value: &[u8]) {
    write_field(line, delimiter, key);
    line.push(delimiter);
    write_field(line, delimiter, value);
    line.push(b'\n');
}

fn write_field(line: &mut Vec<u8>, delimiter: u8, field: &[u8]) {
    let special = |byte: &u8| matches!(*byte, b'"' | b'\r' | b'\n') || *byte == delimiter;
    // At the start of a file these three bytes would be taken for a mark of UTF-8.
    let is_mark = field.starts_with(super::records::BYTE_ORDER_MARK);
    if !is_mark && !field.iter().any(special) {
        line.extend_from_slice(field);
        return;
    }
    line.push(b'"');
    for &byte in field {
        if byte == b'"' {
            line.push(b'"');
        }
        line.push(byte);
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(delimiter: u8, text: &[u8]) -> Result<Option<Columns>, String> {
        let mut parser = Parser::new(delimiter);
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            if parser.line(line)? {
                return parser.finish().map(Some);
            }
        }
        Ok(None)
    }

    #[test]
    fn records_are_read() {
        for (text, key, value) in [
            (&b"a,b\n"[..], &b"a"[..], &b"b"[..]),
            (b"a,b\r\n", b"a", b"b"),
            (b"a,b", b"a", b"b"),
            (b" a , \n", b" a ", b" "),
            (b"a,\n", b"a", b""),
            (b"a,\"\"\n", b"a", b""),
            (b"\"a,\"\"\",\"x\r\ny\n\"\n", b"a,\"", b"x\r\ny\n"),
            (b"a,12\" vinyl\n", b"a", b"12\" vinyl"),
        ] {
            assert_eq!(parse(b',', text).unwrap().unwrap(), (key.to_vec(), value.to_vec()));
        }
    }

    #[test]
    fn broken_records_say_why() {
        for (text, reason) in [
            (&b"a\n"[..], "1 column instead of 2"),
            (b"\n", "1 column instead of 2"),
            (b"a,b,c\n", "3 columns instead of 2"),
            (b"a,\"b\"c\n", "column 2 goes on behind its closing quote"),
        ] {
            let error = parse(b',', text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(parse(b',', b"a,\"b\nc,d\n").unwrap(), None, "an open quote wants more");
    }

    /// Every field of up to four bytes out of those that matter, read back by us and by the csv crate.
    #[test]
    fn what_is_written_is_read_back() {
        let alphabet = b"a\",\t\n\r";
        let mut fields = vec![Vec::new()];
        for length in 1..=4u32 {
            for number in 0..6usize.pow(length) {
                let mut rest = number;
                fields.push((0..length).map(|_| (alphabet[rest % 6], rest /= 6).0).collect());
            }
        }
        for delimiter in [b',', b'\t'] {
            for field in &fields {
                let mut line = Vec::new();
                write(&mut line, delimiter, b"k", field);
                let read = parse(delimiter, &line).unwrap().unwrap();
                assert_eq!(read, (b"k".to_vec(), field.clone()), "{line:?}");
                let mut reader = csv::ReaderBuilder::new()
                    .has_headers(false)
                    .delimiter(delimiter)
                    .from_reader(line.as_slice());
                let record = reader.byte_records().next().unwrap().unwrap();
                assert_eq!(&record[1], field.as_slice(), "{line:?}");
            }
        }
    }
}
