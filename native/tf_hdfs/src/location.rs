//! A URL in its parts: the file system, and a normalized absolute path in it.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub base: String, // scheme://authority; the authority is empty for the configuration's default
    pub path: String, // "/", or absolute and without "." , "..", double and trailing slashes
}

impl Location {
    /// Percent signs are literal, as everywhere in TensorFlow.
    pub fn of(url: &str) -> Location {
        let (base, rest) = match url.split_once("://") {
            Some((scheme, rest)) => {
                let cut = rest.find('/').unwrap_or(rest.len());
                (format!("{scheme}://{}", &rest[..cut]), &rest[cut..])
            }
            None => ("hdfs://".to_string(), url),
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in rest.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        Location { base, path: format!("/{}", parts.join("/")) }
    }

    pub fn url(&self) -> String {
        format!("{}{}", self.base, self.path)
    }

    /// Return the child called `name` of this folder.
    pub fn child(&self, name: &str) -> Location {
        Location { base: self.base.clone(), path: format!("{}/{name}", self.path.trim_end_matches('/')) }
    }
}

/// Return the last part of a path.
pub fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_url() {
        for (url, base, path) in [
            ("hdfs://nn:8020/a/b", "hdfs://nn:8020", "/a/b"),
            ("hdfs://nn:8020", "hdfs://nn:8020", "/"),
            ("hdfs:///a//b/", "hdfs://", "/a/b"),
            ("hdfs://ns/a/./c/../b%20 ü#?", "hdfs://ns", "/a/b%20 ü#?"),
            ("hdfs://ns/../..", "hdfs://ns", "/"),
            ("/a", "hdfs://", "/a"),
        ] {
            assert_eq!(Location::of(url), Location { base: base.into(), path: path.into() }, "{url}");
        }
    }

    #[test]
    fn children() {
        assert_eq!(Location::of("hdfs://n").child("x").url(), "hdfs://n/x");
        assert_eq!(Location::of("hdfs://n/a").child("x").url(), "hdfs://n/a/x");
        assert_eq!(name("/a/x"), "x");
    }
}
