// Registration of the ops on parameter lists, and of the library's own description.
#include "arguments.h"

namespace lapkernels {
namespace {

using List = std::vector<Tensor>;

List dense(const List& tensors) {
  List found;
  for (const Tensor& tensor : tensors) found.push_back(torch::stable::contiguous(tensor));
  return found;
}

void check_scalar(const Tensor& out, const List& first) {
  STD_TORCH_CHECK(!first.empty(), "the lists are empty");
  check_tensor("out", out, first[0]);
  check_dims("out", out, 0);
}

template <class T>
void update_scalar(Tensor& out, Update update, double value) {
  T* at = static_cast<T*>(out.data_ptr());
  *at = T((update.decay == 0 ? 0.0 : update.decay * *at) + update.scale * value);
}

void gaussian_kl(Tensor out, double decay, double scale, List mean, List log_sigma,
                 double prior_sigma) {
  check_scalar(out, mean);
  STD_TORCH_CHECK(prior_sigma > 0, "prior_sigma is ", prior_sigma, ": it must be positive");
  const List a = dense(mean), b = dense(log_sigma);
  with_dtype(out, [&]<class T>() {
    const auto mu = flat_list<const T>("mean", a, a);
    const auto sigma = flat_list<const T>("log_sigma", b, a);
    update_scalar<T>(out, {decay, scale},
                     kernels<T>().gaussian_kl(torch_context(), mu, sigma, prior_sigma));
  });
}

void squared_gradient_sum(Tensor out, double decay, double scale, List gradient, List log_sigma) {
  check_scalar(out, gradient);
  const List a = dense(gradient), b = dense(log_sigma);
  with_dtype(out, [&]<class T>() {
    const auto g = flat_list<const T>("gradient", a, a);
    const auto sigma = flat_list<const T>("log_sigma", b, a);
    update_scalar<T>(out, {decay, scale},
                     kernels<T>().squared_gradient_sum(torch_context(), g, sigma));
  });
}

// Runs body on dense copies of the written list, and copies back what was not dense.
template <class Written>
void on_dense(List& written, Written body) {
  for (const Tensor& tensor : written) check_writable("the list that is written", tensor);
  List copies = dense(written);
  body(copies);
  for (size_t i = 0; i < written.size(); ++i)
    if (copies[i].data_ptr() != written[i].data_ptr()) torch::stable::copy_(written[i], copies[i]);
}

void precision_update(List precision, List diagonal, double decay, double scale) {
  STD_TORCH_CHECK(!precision.empty(), "precision is empty");
  check_tensor("precision", precision[0], precision[0]);
  const List d = dense(diagonal);
  on_dense(precision, [&](List& h) {
    with_dtype(h[0], [&]<class T>() {
      const auto to = flat_list<T>("precision", h, h);
      const auto from = flat_list<const T>("diagonal", d, h);
      kernels<T>().precision_update(torch_context(), to, from, decay, scale);
    });
  });
}

void sample_from_precision(List noise, List mean, List precision, double prior_precision,
                           double scale) {
  STD_TORCH_CHECK(!noise.empty(), "noise is empty");
  check_tensor("noise", noise[0], noise[0]);
  const List mu = dense(mean), h = dense(precision);
  on_dense(noise, [&](List& e) {
    with_dtype(e[0], [&]<class T>() {
      const auto to = flat_list<T>("noise", e, e);
      const auto center = flat_list<const T>("mean", mu, e);
      const auto spread = flat_list<const T>("precision", h, e);
      kernels<T>().sample_from_precision(torch_context(), to, center, spread, prior_precision,
                                         scale);
    });
  });
}

std::string simd() { return kernels<float>().name; }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(lapkernels_native, library) {
  library.def(
      "gaussian_kl(Tensor(a!) out, float decay, float scale, Tensor[] mean, Tensor[] log_sigma, "
      "float prior_sigma) -> ()");
  library.def(
      "squared_gradient_sum(Tensor(a!) out, float decay, float scale, Tensor[] gradient, "
      "Tensor[] log_sigma) -> ()");
  library.def(
      "precision_update(Tensor(a!)[] precision, Tensor[] diagonal, float decay, float scale) -> "
      "()");
  library.def(
      "sample_from_precision(Tensor(a!)[] noise, Tensor[] mean, Tensor[] precision, "
      "float prior_precision, float scale) -> ()");
  library.def("simd() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(lapkernels_native, CPU, library) {
  library.impl("gaussian_kl", TORCH_BOX(&gaussian_kl));
  library.impl("squared_gradient_sum", TORCH_BOX(&squared_gradient_sum));
  library.impl("precision_update", TORCH_BOX(&precision_update));
  library.impl("sample_from_precision", TORCH_BOX(&sample_from_precision));
}

STABLE_TORCH_LIBRARY_IMPL(lapkernels_native, CompositeExplicitAutograd, library) {
  library.impl("simd", TORCH_BOX(&simd));
}

}  // namespace lapkernels
