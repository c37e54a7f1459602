function __jaxssl_complete
    jaxssl --complete (commandline --cut-at-cursor --current-process | string collect) 2>/dev/null
end
complete --command jaxssl --arguments '(__jaxssl_complete)'
