//! stub
/// stub
pub struct LockFile;
