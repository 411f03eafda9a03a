// What check_resources.py must object to: an array that is indexed at run time.
__global__ void costly_kernel(float* values, int n) {
  float local[40];
  for (int i = 0; i < 40; ++i) local[i] = values[i];
  for (int i = 0; i < n; ++i) local[i * 7 % 40] += local[n % 40];
  values[n] = local[n % 13];
}
