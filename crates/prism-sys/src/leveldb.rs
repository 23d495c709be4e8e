//! LevelDB by its C interface, as Debian has it (`libleveldb-dev`, 1.23): as much
//! as an object engine needs that others are compared with. Not a system call, but
//! the workspace's only other code without a safe interface.
//!
//! With the feature `leveldb`, which links the shared library. Keys are ordered by
//! their bytes; what is written together is so atomically.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    marker::PhantomData,
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr::{self, NonNull},
};

mod ffi {
    use std::ffi::{c_char, c_int};

    macro_rules! opaque {
        ($($name:ident),*) => { $(#[repr(C)] pub(super) struct $name { _private: [u8; 0] })* };
    }
    opaque!(Db, Options, Cache, Filter, Read, Write, Batch, Iter);

    #[link(name = "leveldb")]
    unsafe extern "C" {
        pub(super) fn leveldb_open(
            o: *const Options,
            name: *const c_char,
            e: *mut *mut c_char,
        ) -> *mut Db;
        pub(super) fn leveldb_close(db: *mut Db);
        pub(super) fn leveldb_write(
            db: *mut Db,
            o: *const Write,
            b: *mut Batch,
            e: *mut *mut c_char,
        );
        pub(super) fn leveldb_get(
            db: *mut Db,
            o: *const Read,
            key: *const c_char,
            len: usize,
            value_len: *mut usize,
            e: *mut *mut c_char,
        ) -> *mut c_char;
        pub(super) fn leveldb_create_iterator(db: *mut Db, o: *const Read) -> *mut Iter;
        pub(super) fn leveldb_iter_destroy(i: *mut Iter);
        pub(super) fn leveldb_iter_valid(i: *const Iter) -> u8;
        pub(super) fn leveldb_iter_seek(i: *mut Iter, key: *const c_char, len: usize);
        pub(super) fn leveldb_iter_next(i: *mut Iter);
        pub(super) fn leveldb_iter_key(i: *const Iter, len: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_value(i: *const Iter, len: *mut usize) -> *const c_char;
        pub(super) fn leveldb_iter_get_error(i: *const Iter, e: *mut *mut c_char);
        pub(super) fn leveldb_writebatch_create() -> *mut Batch;
        pub(super) fn leveldb_writebatch_destroy(b: *mut Batch);
        pub(super) fn leveldb_writebatch_put(
            b: *mut Batch,
            key: *const c_char,
            len: usize,
            value: *const c_char,
            value_len: usize,
        );
        pub(super) fn leveldb_writebatch_delete(b: *mut Batch, key: *const c_char, len: usize);
        pub(super) fn leveldb_options_create() -> *mut Options;
        pub(super) fn leveldb_options_destroy(o: *mut Options);
        pub(super) fn leveldb_options_set_create_if_missing(o: *mut Options, v: u8);
        pub(super) fn leveldb_options_set_paranoid_checks(o: *mut Options, v: u8);
        pub(super) fn leveldb_options_set_write_buffer_size(o: *mut Options, v: usize);
        pub(super) fn leveldb_options_set_cache(o: *mut Options, c: *mut Cache);
        pub(super) fn leveldb_options_set_filter_policy(o: *mut Options, f: *mut Filter);
        pub(super) fn leveldb_options_set_compression(o: *mut Options, v: c_int);
        pub(super) fn leveldb_cache_create_lru(capacity: usize) -> *mut Cache;
        pub(super) fn leveldb_cache_destroy(c: *mut Cache);
        pub(super) fn leveldb_filterpolicy_create_bloom(bits: c_int) -> *mut Filter;
        pub(super) fn leveldb_filterpolicy_destroy(f: *mut Filter);
        pub(super) fn leveldb_readoptions_create() -> *mut Read;
        pub(super) fn leveldb_readoptions_destroy(o: *mut Read);
        pub(super) fn leveldb_readoptions_set_verify_checksums(o: *mut Read, v: u8);
        pub(super) fn leveldb_writeoptions_create() -> *mut Write;
        pub(super) fn leveldb_writeoptions_destroy(o: *mut Write);
        pub(super) fn leveldb_writeoptions_set_sync(o: *mut Write, v: u8);
        pub(super) fn leveldb_free(p: *mut std::ffi::c_void);
    }
}

/// Bits of the Bloom filters for each key: 1 in 100 look-ups reads in vain.
const BLOOM_BITS: c_int = 10;
const NO_COMPRESSION: c_int = 0;

/// What LevelDB says: the disk, or whoever opened it twice, is at fault.
#[derive(Debug, Clone, thiserror::Error)]
#[error("LevelDB: {0}")]
pub struct LevelError(String);

/// How a database is set up.
#[derive(Debug, Clone, Copy)]
pub struct LevelOptions {
    /// Bytes of cached blocks.
    pub cache_bytes: usize,
    /// Bytes of a table in memory.
    pub write_buffer_bytes: usize,
    /// Whether a write waits for the disk.
    pub sync: bool,
}

/// A database, open in one process at a time. Everything may block on disk.
pub struct LevelDb {
    db: NonNull<ffi::Db>,
    options: NonNull<ffi::Options>,
    cache: NonNull<ffi::Cache>,
    filter: NonNull<ffi::Filter>,
    read: NonNull<ffi::Read>,
    write: NonNull<ffi::Write>,
}

// SAFETY: LevelDB's documentation: "a database may be used by several threads
// without external synchronization". The options are not changed after opening.
unsafe impl Send for LevelDb {}
// SAFETY: as above.
unsafe impl Sync for LevelDb {}

impl LevelDb {
    /// Opens a database, or creates it.
    ///
    /// # Errors
    /// [`LevelError`], also where another process has it open.
    pub fn open(path: &Path, options: LevelOptions) -> Result<Self, LevelError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| LevelError("a path with a zero byte".into()))?;
        // SAFETY: constructors without arguments, or with numbers.
        let made = unsafe {
            (
                NonNull::new(ffi::leveldb_options_create()),
                NonNull::new(ffi::leveldb_cache_create_lru(options.cache_bytes)),
                NonNull::new(ffi::leveldb_filterpolicy_create_bloom(BLOOM_BITS)),
                NonNull::new(ffi::leveldb_readoptions_create()),
                NonNull::new(ffi::leveldb_writeoptions_create()),
            )
        };
        let (Some(opts), Some(cache), Some(filter), Some(read), Some(write)) = made else {
            return Err(LevelError("out of memory".into()));
        };
        let mut error = ptr::null_mut();
        // SAFETY: all pointers were made above and are ours; `name` ends with a
        // zero and outlives the call; the options are used by `leveldb_open` and
        // kept until the database is closed.
        let db = unsafe {
            ffi::leveldb_options_set_create_if_missing(opts.as_ptr(), 1);
            ffi::leveldb_options_set_paranoid_checks(opts.as_ptr(), 1);
            ffi::leveldb_options_set_write_buffer_size(opts.as_ptr(), options.write_buffer_bytes);
            ffi::leveldb_options_set_cache(opts.as_ptr(), cache.as_ptr());
            ffi::leveldb_options_set_filter_policy(opts.as_ptr(), filter.as_ptr());
            ffi::leveldb_options_set_compression(opts.as_ptr(), NO_COMPRESSION);
            ffi::leveldb_readoptions_set_verify_checksums(read.as_ptr(), 1);
            ffi::leveldb_writeoptions_set_sync(write.as_ptr(), options.sync.into());
            ffi::leveldb_open(opts.as_ptr(), name.as_ptr(), &raw mut error)
        };
        let opened = taken(error).and_then(|()| {
            NonNull::new(db).ok_or_else(|| LevelError("no database and no error".into()))
        });
        match opened {
            Ok(db) => Ok(Self {
                db,
                options: opts,
                cache,
                filter,
                read,
                write,
            }),
            Err(error) => {
                // SAFETY: made above; nothing uses them, as nothing was opened.
                unsafe { release(opts, cache, filter, read, write) };
                Err(error)
            }
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`LevelError`], also where what was read is not what was written.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LevelError> {
        let (mut len, mut error) = (0, ptr::null_mut());
        // SAFETY: the database is open; the key is `key.len()` bytes; length and
        // error are written to places of ours.
        let value = unsafe {
            ffi::leveldb_get(
                self.db.as_ptr(),
                self.read.as_ptr(),
                key.as_ptr().cast(),
                key.len(),
                &raw mut len,
                &raw mut error,
            )
        };
        taken(error)?;
        let Some(value) = NonNull::new(value) else {
            return Ok(None);
        };
        // SAFETY: LevelDB has allocated `len` bytes for us, which are freed once
        // they have been copied.
        let copy = unsafe {
            let copy = std::slice::from_raw_parts(value.as_ptr().cast::<u8>(), len).to_vec();
            ffi::leveldb_free(value.as_ptr().cast());
            copy
        };
        Ok(Some(copy))
    }

    /// Writes all of a batch or nothing.
    ///
    /// # Errors
    /// [`LevelError`]; whether it was written is not known then.
    pub fn write(&self, batch: LevelBatch) -> Result<(), LevelError> {
        let mut error = ptr::null_mut();
        // SAFETY: database and batch are live; the batch is ours alone.
        unsafe {
            ffi::leveldb_write(
                self.db.as_ptr(),
                self.write.as_ptr(),
                batch.0.as_ptr(),
                &raw mut error,
            );
        }
        taken(error)
    }

    /// The database as of now, from the first key that is not less than this.
    #[must_use]
    pub fn seek(&self, key: &[u8]) -> LevelCursor<'_> {
        // SAFETY: the database is open, and outlives the iterator, which borrows
        // it; the key is copied.
        let iter = unsafe {
            let iter = ffi::leveldb_create_iterator(self.db.as_ptr(), self.read.as_ptr());
            ffi::leveldb_iter_seek(iter, key.as_ptr().cast(), key.len());
            iter
        };
        LevelCursor {
            iter,
            db: PhantomData,
        }
    }
}

impl Drop for LevelDb {
    fn drop(&mut self) {
        // SAFETY: nothing uses the database any more: iterators borrow it. The
        // options are given up after it.
        unsafe {
            ffi::leveldb_close(self.db.as_ptr());
            release(self.options, self.cache, self.filter, self.read, self.write);
        }
    }
}

impl std::fmt::Debug for LevelDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LevelDb").finish_non_exhaustive()
    }
}

/// Changes that are made together.
#[derive(Debug)]
pub struct LevelBatch(NonNull<ffi::Batch>);

impl LevelBatch {
    /// An empty one; `None` without memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        // SAFETY: a constructor without arguments.
        NonNull::new(unsafe { ffi::leveldb_writebatch_create() }).map(Self)
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        let (batch, key_ptr) = (self.0.as_ptr(), key.as_ptr().cast());
        // SAFETY: the batch is live; both slices are copied.
        unsafe {
            ffi::leveldb_writebatch_put(
                batch,
                key_ptr,
                key.len(),
                value.as_ptr().cast(),
                value.len(),
            );
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &[u8]) {
        // SAFETY: the batch is live; the slice is copied.
        unsafe {
            ffi::leveldb_writebatch_delete(self.0.as_ptr(), key.as_ptr().cast(), key.len());
        }
    }
}

impl Drop for LevelBatch {
    fn drop(&mut self) {
        // SAFETY: live until now.
        unsafe { ffi::leveldb_writebatch_destroy(self.0.as_ptr()) };
    }
}

/// A key and its value.
pub type LevelPair = (Vec<u8>, Vec<u8>);

/// A place in a database as of one moment.
#[derive(Debug)]
pub struct LevelCursor<'a> {
    iter: *mut ffi::Iter,
    db: PhantomData<&'a LevelDb>,
}

impl LevelCursor<'_> {
    /// The key and value here, and goes on to the next; `None` at the end.
    ///
    /// # Errors
    /// [`LevelError`] where what was read is not what was written.
    #[expect(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<LevelPair>, LevelError> {
        // SAFETY: the iterator is live. Key and value are valid until it is moved,
        // and are copied before.
        unsafe {
            if ffi::leveldb_iter_valid(self.iter) == 0 {
                let mut error = ptr::null_mut();
                ffi::leveldb_iter_get_error(self.iter, &raw mut error);
                return taken(error).map(|()| None);
            }
            let (mut key_len, mut value_len) = (0, 0);
            let key = ffi::leveldb_iter_key(self.iter, &raw mut key_len);
            let value = ffi::leveldb_iter_value(self.iter, &raw mut value_len);
            let found = (copied(key, key_len), copied(value, value_len));
            ffi::leveldb_iter_next(self.iter);
            Ok(Some(found))
        }
    }
}

impl Drop for LevelCursor<'_> {
    fn drop(&mut self) {
        // SAFETY: live until now.
        unsafe { ffi::leveldb_iter_destroy(self.iter) };
    }
}

/// # Safety
/// `from` is `len` bytes, or `len` is 0.
unsafe fn copied(from: *const c_char, len: usize) -> Vec<u8> {
    match len {
        0 => Vec::new(),
        // SAFETY: the caller's word.
        _ => unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len).to_vec() },
    }
}

/// # Safety
/// All are live, and used by nothing.
unsafe fn release(
    options: NonNull<ffi::Options>,
    cache: NonNull<ffi::Cache>,
    filter: NonNull<ffi::Filter>,
    read: NonNull<ffi::Read>,
    write: NonNull<ffi::Write>,
) {
    // SAFETY: the caller's word.
    unsafe {
        ffi::leveldb_options_destroy(options.as_ptr());
        ffi::leveldb_cache_destroy(cache.as_ptr());
        ffi::leveldb_filterpolicy_destroy(filter.as_ptr());
        ffi::leveldb_readoptions_destroy(read.as_ptr());
        ffi::leveldb_writeoptions_destroy(write.as_ptr());
    }
}

/// The error that a call has left, if any, which is ours to free.
fn taken(error: *mut c_char) -> Result<(), LevelError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: LevelDB leaves null or a string of its own allocation, ended by a
    // zero.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        ffi::leveldb_free(error.cast());
        text
    };
    Err(LevelError(text))
}
