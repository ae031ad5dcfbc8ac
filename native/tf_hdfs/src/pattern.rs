//! TensorFlow's wildcards in one part of a path: `*`, `?`, `[a-z]`, `[^a-z]`, and a backslash before a literal
//! character.

/// Return whether `part` has wildcards.
pub fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '[', '\\'])
}

/// Return whether the whole `name` matches `pattern`.
pub fn fits(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None; // position after the newest star, and how far that one has read
    loop {
        if at == pattern.len() && read == name.len() {
            return true;
        }
        if pattern.get(at) == Some(&'*') {
            at += 1;
            star = Some((at, read));
            continue;
        }
        if let Some(next) = name.get(read).and_then(|letter| one(&pattern, at, *letter)) {
            at = next;
            read += 1;
            continue;
        }
        // An earlier star need not be tried again: what follows the newest one begins as late as possible.
        match star {
            Some((behind, reads)) if reads < name.len() => {
                at = behind;
                read = reads + 1;
                star = Some((behind, read));
            }
            _ => return false,
        }
    }
}

/// Return the position after the element at `at`, no star, if it matches `letter`; None if it does not.
fn one(pattern: &[char], at: usize, letter: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => {
            let end = at + 2 + pattern.get(at + 2..)?.iter().position(|c| *c == ']')?;
            let set = &pattern[at + 1..end];
            let (set, inverted) = match set[0] {
                '^' | '!' => (&set[1..], true),
                _ => (set, false),
            };
            (is_in(set, letter) != inverted).then_some(end + 1)
        }
        '\\' if at + 1 < pattern.len() => (pattern[at + 1] == letter).then_some(at + 2),
        other => (*other == letter).then_some(at + 1),
    }
}

fn is_in(set: &[char], letter: char) -> bool {
    let mut rest = set;
    while let Some((first, behind)) = rest.split_first() {
        if let ['-', last, further @ ..] = behind {
            if (*first..=*last).contains(&letter) {
                return true;
            }
            rest = further;
        } else {
            if *first == letter {
                return true;
            }
            rest = behind;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        for (pattern, name) in [
            ("*", ""),
            ("*.txt", "a.txt"),
            ("a*b*c", "a-b-b-c"),
            ("?b", "ab"),
            ("[a-c]x", "bx"),
            ("[^a-c]x", "dx"),
            ("[!a]x", "bx"),
            ("[]a]", "]"),
            ("[a-]", "-"),
            ("\\*", "*"),
            ("ü*", "über"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.txt", "a.txt2"), ("?", ""), ("[a-c]", "d"), ("[^a]", "a"), ("\\*", "a"), ("[a", "a")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!fits(&"*a".repeat(40), &"a".repeat(39)));
        assert!(!fits(&format!("{}b", "*a".repeat(30)), &"a".repeat(5_000)));
    }
}
