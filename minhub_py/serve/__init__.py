"""HTTP server with the OpenAI API, the Ollama API and a web page.

engine_thread.py   base of the engines: a thread with a queue of requests
engine.py          continuous batching of requests in one thread per model
encoder_engine.py  batching of texts in one thread per text encoder
models.py          served models; generation for HTTP requests
validation.py      validation of JSON bodies
workers.py         thread pools for tokenization and schemas
streaming.py       complete and streamed responses
openai.py          OpenAI API
embeddings.py      embeddings of the OpenAI API, and reranking
ollama.py          Ollama API
page/              web page
server.py          settings, access control, error formats
app.py             ASGI application: middleware and routes
run.py             socket, uvicorn, signals
"""
