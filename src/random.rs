//! Random bytes from the kernel, fetched many at a time: a request needs a few, and each fetch is a system call.

use std::cell::RefCell;

/// Characters that are easy to tell apart when read aloud (Crockford's base 32).
pub(crate) const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// What was fetched, and how much of it was given out. No byte is given twice.
struct Pool {
    bytes: [u8; 512],
    given: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; 512], given: 512 }) };
}

/// Returns `N` random bytes.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut own = [0; N];
    fill(&mut own);
    own
}

/// Returns `length` random characters of 5 bits each.
pub(crate) fn text(length: usize) -> String {
    let mut bytes = vec![0; length];
    fill(&mut bytes);
    bytes.into_iter().map(|byte| char::from(ALPHABET[usize::from(byte & 31)])).collect()
}

fn fill(wanted: &mut [u8]) {
    POOL.with_borrow_mut(|pool| {
        for byte in wanted {
            if pool.given == pool.bytes.len() {
                getrandom::fill(&mut pool.bytes).expect("the kernel gives random bytes");
                pool.given = 0;
            }
            // What was a token's is not kept.
            *byte = std::mem::take(&mut pool.bytes[pool.given]);
            pool.given += 1;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_byte_is_given_twice() {
        // More than a pool, in pieces that do not divide it; 48 bits each do not repeat by chance.
        let numbers: BTreeSet<[u8; 6]> = (0..10_000).map(|_| bytes()).collect();
        assert_eq!(numbers.len(), 10_000);
        let texts: BTreeSet<String> = (0..1000).map(|_| text(26)).collect();
        assert_eq!(texts.len(), 1000);
        assert!(texts.iter().all(|text| text.len() == 26 && text.bytes().all(|byte| ALPHABET.contains(&byte))));
    }
}
