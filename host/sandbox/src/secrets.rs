//! Decrypted secrets on their way into an instance.

use std::fmt;
use zeroize::Zeroizing;

/// Decrypted secrets of a function, as environment variables of a new instance. They are overwritten
/// when this is dropped; the instance keeps its copy until its memory is cleared.
#[derive(Default)]
pub struct SecretEnv(Vec<(String, Zeroizing<String>)>);

impl SecretEnv {
    /// Adds a variable.
    pub fn add(&mut self, variable: String, value: Zeroizing<String>) {
        self.0.push((variable, value));
    }

    /// The variables with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(variable, value)| (variable.as_str(), value.as_str()))
    }
}

impl fmt::Debug for SecretEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(variable, _)| variable)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_values() {
        let mut env = SecretEnv::default();
        env.add("TOKEN".to_owned(), Zeroizing::new("hunter2".to_owned()));
        assert_eq!(format!("{env:?}"), r#"{"TOKEN"}"#);
        assert_eq!(env.iter().collect::<Vec<_>>(), [("TOKEN", "hunter2")]);
    }
}
