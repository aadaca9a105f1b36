//! Tensor functions: functions with the signature of a model.

use crate::bindings::imports::weir::inference::tensors::{Error as RawError, Tensor as RawTensor};
use crate::{Result, Tensor, Tensors};

/// Exports a `fn(Tensors) -> Result<Tensors>` as a component with the signature of a model. Use the
/// macro once per crate.
///
/// ```
/// use weir::{Result, Tensors};
///
/// fn rename(inputs: Tensors) -> Result<Tensors> {
///     Ok(Tensors::from([("y", inputs.only()?)]))
/// }
///
/// weir::tensor_function!(rename);
/// ```
#[macro_export]
macro_rules! tensor_function {
    ($handler:path) => {
        const _: () = {
            struct WeirFunction;

            impl $crate::bindings::tensor_function::exports::weir::inference::stage::Guest for WeirFunction {
                fn run(
                    inputs: ::std::vec::Vec<(
                        ::std::string::String,
                        $crate::bindings::imports::weir::inference::tensors::Tensor,
                    )>,
                ) -> ::std::result::Result<
                    ::std::vec::Vec<(
                        ::std::string::String,
                        $crate::bindings::imports::weir::inference::tensors::Tensor,
                    )>,
                    $crate::bindings::imports::weir::inference::tensors::Error,
                > {
                    $crate::__private::run($handler, inputs)
                }
            }

            $crate::bindings::tensor_function::__export_stage!(WeirFunction with_types_in $crate::bindings::tensor_function);
        };
    };
}

/// Implementation of [`tensor_function`].
pub fn run(
    handler: impl FnOnce(Tensors) -> Result<Tensors>,
    inputs: Vec<(String, RawTensor)>,
) -> Result<Vec<(String, RawTensor)>, RawError> {
    let inputs = inputs.into_iter().map(|(name, tensor)| (name, Tensor(tensor))).collect();
    Ok(handler(inputs)?.into_iter().map(|(name, tensor)| (name, tensor.0)).collect())
}
