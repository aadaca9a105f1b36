//! Named tensors: inputs and outputs of a run.

use crate::{Error, Result, Tensor};

/// Named tensors in order: the outputs of a model, or the inputs and outputs of a tensor function.
#[derive(Debug, Default)]
pub struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    /// The tensor named `name`. Fails if there is none.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let found = self.0.iter().find(|(is, _)| is == name);
        found.map(|(_, tensor)| tensor).ok_or_else(|| self.missing(name))
    }

    /// Removes and returns the tensor named `name`. Fails if there is none.
    pub fn take(&mut self, name: &str) -> Result<Tensor> {
        match self.0.iter().position(|(is, _)| is == name) {
            Some(at) => Ok(self.0.remove(at).1),
            None => Err(self.missing(name)),
        }
    }

    /// The only tensor. Fails if there are none or several.
    pub fn only(mut self) -> Result<Tensor> {
        match (self.0.pop(), self.0.is_empty()) {
            (Some((_, tensor)), true) => Ok(tensor),
            (None, _) => Err(Error::invalid("there is no tensor where one is expected")),
            (Some((last, _)), false) => Err(Error::invalid(format_args!(
                "there are {}, {last} where one tensor is expected",
                self.names()
            ))),
        }
    }

    /// Appends a tensor.
    pub fn push(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.0.push((name.into(), tensor));
    }

    /// Number of tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no tensors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names and tensors, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    fn missing(&self, name: &str) -> Error {
        Error::invalid(format_args!("there is no tensor {name}; there are: {}", self.names()))
    }

    fn names(&self) -> String {
        self.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

impl<N: Into<String>> FromIterator<(N, Tensor)> for Tensors {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(tensors: I) -> Self {
        Self(tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect())
    }
}

impl<N: Into<String>, const COUNT: usize> From<[(N, Tensor); COUNT]> for Tensors {
    fn from(tensors: [(N, Tensor); COUNT]) -> Self {
        tensors.into_iter().collect()
    }
}

impl IntoIterator for Tensors {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tensor_is_reported_by_name() {
        let none = Tensors::default();
        assert!(none.get("x").unwrap_err().to_string().contains("no tensor x"));
        assert!(none.only().is_err());
    }
}
