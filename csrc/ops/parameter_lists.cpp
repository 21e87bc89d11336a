// Registration of the ops on parameter lists.
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

void gaussian_kl(Tensor out, double decay, double scale, List mean, List log_sigma,
                 double prior_sigma) {
  check_scalar(out, mean);
  STD_TORCH_CHECK(prior_sigma > 0, "prior_sigma is ", prior_sigma, ": it must be positive");
  const List a = dense(mean), b = dense(log_sigma);
  with_kernels(out, [&]<class T>(const auto& kernels, const auto& context) {
    const auto mu = flat_list<const T>("mean", a, a);
    const auto sigma = flat_list<const T>("log_sigma", b, a);
    kernels.gaussian_kl(context, static_cast<T*>(out.data_ptr()), {decay, scale}, mu, sigma,
                        prior_sigma);
  });
}

void squared_gradient_sum(Tensor out, double decay, double scale, List gradient, List log_sigma) {
  check_scalar(out, gradient);
  const List a = dense(gradient), b = dense(log_sigma);
  with_kernels(out, [&]<class T>(const auto& kernels, const auto& context) {
    const auto g = flat_list<const T>("gradient", a, a);
    const auto sigma = flat_list<const T>("log_sigma", b, a);
    kernels.squared_gradient_sum(context, static_cast<T*>(out.data_ptr()), {decay, scale}, g,
                                 sigma);
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
    with_kernels(h[0], [&]<class T>(const auto& kernels, const auto& context) {
      const auto to = flat_list<T>("precision", h, h);
      const auto from = flat_list<const T>("diagonal", d, h);
      kernels.precision_update(context, to, from, decay, scale);
    });
  });
}

void sample_from_precision(List noise, List mean, List precision, double prior_precision,
                           double scale) {
  STD_TORCH_CHECK(!noise.empty(), "noise is empty");
  check_tensor("noise", noise[0], noise[0]);
  const List mu = dense(mean), h = dense(precision);
  on_dense(noise, [&](List& e) {
    with_kernels(e[0], [&]<class T>(const auto& kernels, const auto& context) {
      const auto to = flat_list<T>("noise", e, e);
      const auto center = flat_list<const T>("mean", mu, e);
      const auto spread = flat_list<const T>("precision", h, e);
      kernels.sample_from_precision(context, to, center, spread, prior_precision, scale);
    });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(LAPKERNELS_LIBRARY, library) {
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
}

LAPKERNELS_KERNEL(gaussian_kl)
LAPKERNELS_KERNEL(squared_gradient_sum)
LAPKERNELS_KERNEL(precision_update)
LAPKERNELS_KERNEL(sample_from_precision)

}  // namespace lapkernels
