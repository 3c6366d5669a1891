//! stub
/// stub
pub fn replace_file() {}
