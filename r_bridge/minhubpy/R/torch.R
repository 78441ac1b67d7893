# R torch, where it is installed. Nothing here runs without a tensor that R torch made.

forward_torch <- function(model, idx) {
  ids <- array(as.integer(idx$cpu()), idx$shape)
  if (length(dim(ids)) == 1L) ids <- as.vector(ids)
  parts <- ask("forward", model = model, ids = ids, first = 1L, as_torch = TRUE)
  # The tensor would only borrow the vector's memory, which R may free: a clone owns its own.
  logits <- torch::torch_tensor_from_buffer(parts$data, parts$shape, dtype = parts$dtype)$clone()
  logits$to(device = idx$device)
}
